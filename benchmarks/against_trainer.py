"""Continued pretraining of ModernBERT-base: this trainer against `transformers.Trainer`, in turns.

    python benchmarks/against_trainer.py TEXT TOKENIZER WORK [--arms ...] [--output DIR]

Random weights of ModernBERT-base's shape (149M parameters) and the tokenizer of a folder, continued on TEXT
on one device: as `neobert-launch train --from` does by default, and compiled. The peers train the same
segments with the same share of masked tokens, bf16, fused AdamW, and about as many useful tokens per step
(`peers/trainer_arm.py`): padded by default; grouped by length and compiled; packed with bounds, compiled on
torch's varlen kernel, or on FlashAttention 4 by name. All take turns (`peers/turn_taking.py`). One step of
each is profiled: a peer whose attention is dense math is refused. A useful token is one of a document.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measurement import write_measurement
from peers.turn_taking import Answer, ArmProcess
from peers.turns import relative_throughput
from transformers import ModernBertConfig, ModernBertForMaskedLM, PreTrainedTokenizerFast

from neobert.config import to_dict
from neobert.config.schema import RunConfig
from neobert.data.store.prepare import prepare
from profiles.registry import resolve_run

TINY = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}
OURS = {"ours": [], "ours, compiled": ["trainer.torch_compile=true"]}
"""Our arms, with the config keys that each changes in the run file of `init --from`."""
DEFAULT = "default"
PEERS = (DEFAULT, "grouped, compiled", "packed, compiled", "packed, flash_attention_4")
"""Forms of `peers/trainer_arm.py`, whose modules are imported by the children only."""
WARM_UP = 6
COMPILED = "compiled"


def write_model(folder: Path, tokenizer: Path, *, is_tiny: bool) -> None:
    """Write a randomly initialized ModernBERT, and a folder's tokenizer with declared special tokens."""
    roles = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    fast = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer / "tokenizer.json"), **roles)
    ids = {"pad_token_id": fast.pad_token_id, "bos_token_id": fast.cls_token_id}
    ids |= {"cls_token_id": fast.cls_token_id, "sep_token_id": fast.sep_token_id}
    config = ModernBertConfig(**ids, eos_token_id=fast.sep_token_id, **(TINY if is_tiny else {}))
    ModernBertForMaskedLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)


def write_run(work: Path, text: Path, *, is_tiny: bool) -> RunConfig:
    """Write the run file as `init --from` does, and the resolved config of each of our arms.

    Returns the config of the arm `ours`.
    """
    run_file = work / "run.yaml"
    run_file.unlink(missing_ok=True)
    device = "cpu" if is_tiny else "gpu"
    command = ["init", "--from", str(work / "model"), "--text", str(text), "--device", device, str(run_file)]
    subprocess.run([sys.executable, "-m", "launcher", *command], check=True, stdout=subprocess.DEVNULL)
    always = [f"dataset.cache_dir={work / 'cache'}"]
    if is_tiny:
        always.append("trainer.per_device_train_batch_size=2")
    configs = {name: resolve_run(None, [run_file], [*always, *keys]).config for name, keys in OURS.items()}
    for name, config in configs.items():
        resolved_config_path(work, name).write_text(json.dumps(to_dict(config)), encoding="utf-8")
    return configs["ours"]


def resolved_config_path(work: Path, name: str) -> Path:
    return work / f"{name.replace(', ', '-')}.json"


def start_child(work: Path, name: str, log: Any) -> ArmProcess:
    if name in OURS:
        return ArmProcess("own_arm", [str(resolved_config_path(work, name))], log)
    return ArmProcess(
        "trainer_arm", [str(resolved_config_path(work, "ours")), str(work / "model"), name], log
    )


def warm_up(children: Mapping[str, ArmProcess]) -> dict[str, Answer]:
    """Warm up the arms, compiled ones at the same time, and profile a step of each.

    Returns the profile or the error of each arm; an arm that should compile but made no graph has an error.
    """
    compiled = [name for name in children if name.endswith(COMPILED)]
    for name in compiled:
        children[name].send(WARM_UP)
    notes: dict[str, Answer] = {}
    for name in [*compiled, *(name for name in children if name not in compiled)]:
        started_s = time.perf_counter()
        try:
            first = children[name].receive() if name in compiled else children[name].call(WARM_UP)
            notes[name] = {"warm_up_s": round(first["seconds"], 1)}
            if name in compiled and not first["graphs"]:
                raise RuntimeError("nothing was compiled")
            profiled = children[name].call(1, is_profiled=True)
            notes[name] |= {"kernels": profiled["kernels"]} | (
                {"error": profiled["refused"]} if profiled["refused"] else {}
            )
        except RuntimeError as error:
            notes[name] = {"error": str(error)}
        attention = notes[name].get("kernels", {}).get("attention")
        waited_s = time.perf_counter() - started_s
        print(f"{name}: {waited_s:.0f} s, {notes[name].get('error') or attention}", flush=True)
    return notes


def measure_rounds(
    children: Mapping[str, ArmProcess], rounds: int, seconds: float
) -> Iterator[dict[str, list[Answer]]]:
    """Yield all responses of each child so far, after every round; a turn lasts about `seconds`."""
    turns: dict[str, list[Answer]] = {name: [] for name in children}
    steps = {}
    for name, child in children.items():
        short = child.call(2)
        steps[name] = max(1, round(seconds * short["steps"] / short["seconds"]))
    for number in range(rounds):
        for name in sorted(children, reverse=bool(number % 2)):
            turns[name].append(children[name].call(steps[name]))
        yield turns


def throughput_figures(turns: Mapping[str, Sequence[Answer]]) -> dict[str, Any]:
    """Return each arm's tokens per second, and the ratios for default and best forms."""
    rates = {name: [round(each["tokens"] / each["seconds"]) for each in done] for name, done in turns.items()}
    totals = {
        name: round(sum(each["tokens"] for each in done) / sum(each["seconds"] for each in done))
        for name, done in turns.items()
    }
    sides = [[name for name in totals if (name in OURS) is own] for own in (True, False)]
    found: dict[str, Any] = {"tokens_per_second": totals, "rates": rates, "ratios": {}}
    if all(sides):
        best = [max(side, key=lambda name: totals[name]) for side in sides]
        pairs = {"best": best, "default": ["ours", DEFAULT], "as given against best": ["ours", best[1]]}
        for title, (mine, theirs) in pairs.items():
            if mine in totals and theirs in totals:
                ratio = {"ratio": round(totals[mine] / totals[theirs], 3), "ours": mine, "peer": theirs}
                found["ratios"][title] = ratio | relative_throughput(rates[mine], rates[theirs])
    return found


def compare_arms(
    start: Callable[[Path, str, Any], ArmProcess],
    work: Path,
    arms: Sequence[str],
    rounds: int,
    seconds: float,
) -> Iterator[dict[str, Any]]:
    """Start all arms and yield the report so far after every round."""
    children, logs = {}, {name: work / f"{resolved_config_path(work, name).stem}.log" for name in arms}
    with ExitStack() as stack:
        for name in arms:
            with logs[name].open("w") as log:
                children[name] = stack.enter_context(closing(start(work, name, log)))
        notes = warm_up(children)
        for name in [name for name, note in notes.items() if "error" in note]:
            children.pop(name).close()
            notes[name]["log"] = logs[name].read_text(errors="replace")[-1500:]
        for turns in measure_rounds(children, rounds, seconds):
            yield build_report(notes, turns)


def build_report(notes: Mapping[str, Answer], turns: Mapping[str, Sequence[Answer]]) -> dict[str, Any]:
    kernels = {name: note["kernels"] for name, note in notes.items() if "kernels" in note}
    arms = {}
    for name, note in notes.items():
        arms[name] = {key: value for key, value in note.items() if key != "kernels"}
        if done := turns.get(name):
            tokens, steps = (sum(each[key] for each in done) for key in ("tokens", "steps"))
            peak = max(each.get("peak_memory_gib", 0.0) for each in done)
            arms[name] |= {"tokens_per_step": round(tokens / steps), "peak_memory_gib": peak}
            arms[name]["graphs"] = done[-1]["graphs"]
    return {
        **throughput_figures(turns),
        "own_kernels": {name: each for name, each in kernels.items() if name in OURS},
        "peer_kernels": {name: each for name, each in kernels.items() if name not in OURS},
        "arms": arms,
    }


def format_table(report: Mapping[str, Any]) -> str:
    lines = [f"{'':28}{'tokens/s':>10}{'tokens/step':>13}{'GiB':>7}{'graphs':>8}  attention"]
    kernels = report["own_kernels"] | report["peer_kernels"]
    for name, note in report["arms"].items():
        if name in report["tokens_per_second"]:
            attention = {kind: each["share"] for kind, each in kernels[name]["attention"].items()}
            rate, tokens = report["tokens_per_second"][name], note["tokens_per_step"]
            about = f"{note['peak_memory_gib']:7.1f}{note['graphs']:8}  {attention}"
            lines.append(f"{name:28}{rate:10,}{tokens:13,}{about}")
        else:
            lines.append(f"{name:28}  {note['error']} {note['log'][-300:]}")
    for title, each in report["ratios"].items():
        span = f"{each['least']:.2f} to {each['greatest']:.2f}"
        lines.append(f"{title}: {each['ratio']:.2f} ({span}): {each['ours']} / {each['peer']}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("text", type=Path, help="text, as for `neobert-launch init --text`")
    parser.add_argument("tokenizer", type=Path, help="tokenizer folder with BERT's special tokens")
    parser.add_argument("work", type=Path)
    parser.add_argument("--arms", nargs="+", choices=[*OURS, *PEERS], default=[*OURS, *PEERS[:-1]])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--round-seconds", type=float, default=3.0, help="seconds of each arm per round")
    parser.add_argument("--tiny", action="store_true", help="a dry run on a CPU")
    parser.add_argument("--output", type=Path, help="folder for the JSON file")
    chosen = parser.parse_args()
    work = chosen.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    write_model(work / "model", chosen.tokenizer, is_tiny=chosen.tiny)
    config = write_run(work, chosen.text.resolve(), is_tiny=chosen.tiny)
    about = {
        "run_file": (work / "run.yaml").read_text(),
        "segments": asdict(prepare(config).train.statistics),
    }
    for number, found in enumerate(
        compare_arms(start_child, work, chosen.arms, chosen.rounds, chosen.round_seconds), 1
    ):
        if chosen.output:
            write_figure(chosen.output, found | about, is_complete=number == chosen.rounds)
    print(format_table(found))
    if failed := found["arms"].keys() - found["tokens_per_second"].keys():
        sys.exit(f"failed: {', '.join(sorted(failed))}")


def write_figure(folder: Path, report: dict[str, Any], *, is_complete: bool) -> None:
    best = report["ratios"].get("best", {}).get("ratio")
    unit = "times the useful tokens/s of the peer, best form of each"
    path = folder / "modernbert-continued.json"
    write_measurement(path, best, unit, 1.15, report, is_complete=is_complete)


if __name__ == "__main__":
    main()
