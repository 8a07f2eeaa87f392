"""Seconds of a step of this trainer's recipe and of `transformers.Trainer`, in turns, and the time to a loss.

    python step_seconds.py TIME_TO_LOSS.json DATA WORK --output step-seconds.json

TIME_TO_LOSS.json has the losses of both sides by number of steps, which today's kernels do not change: they
are not trained again. DATA has pretrain/*.jsonl.gz and tokenizers/bert-base-uncased. Our arms
(`peers/own_arm.py`) run the config of the file at full length of the pieces; the peer
(`peers/full_rows_arm.py`) runs its two optimizers. `time` is the ratio of the seconds in which our loss is
the peer's to the peer's seconds, as in the file: the loss is linear in the logarithm of the time between two
numbers of steps.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
from measurement import write_measurement
from peers.turn_taking import ArmProcess
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from neobert.config import from_dict, to_dict

LENGTH, ROOM, T_95 = 512, 500, 4.303
OPTIMIZER = {
    "name": "muon",
    "muon_lr": 4e-3,
    "lr": 2e-3,
    "betas": [0.9, 0.98],
    "weight_decay": 0.5,
    "muon_momentum": 0.95,
    "muon_split": "projections",
}
SCHEDULER = {"name": "linear", "warmup_percent": 10.0, "decay_percent": None, "final_lr_ratio": 0.0}
SIZES = {"53M": (12, 512, 64), "tiny": (2, 128, 2)}
PEERS = {"peer, adamw": "adamw", "peer, muon": "muon"}


def passages(tokenizer: Tokenizer, folder: Path, most_tokens: int) -> Iterator[tuple[str, list[int]]]:
    """Yield passages of consecutive paragraphs, up to `ROOM` tokens each, with their token ids.

    Ends after `most_tokens` tokens.
    """
    done = 0
    for file in sorted(folder.glob("*.jsonl.gz")):
        for line in gzip.decompress(file.read_bytes()).splitlines():
            held: list[str] = []
            lines = [text for text in json.loads(line)["text"].split("\n") if text.strip()]
            counts = [len(each.ids) for each in tokenizer.encode_batch(lines, add_special_tokens=False)]
            room = 0
            for text, count in [*zip(lines, counts, strict=True), ("", ROOM + 1)]:
                if held and room + count > ROOM:
                    whole = "\n".join(held)
                    ids = tokenizer.encode(whole).ids
                    if len(ids) <= LENGTH:
                        yield whole, ids
                        done += len(ids)
                    held, room = [], 0
                held.append(text)
                room += count
            if done > most_tokens:
                return


def write_text(work: Path, data: Path, most_tokens: int) -> dict[str, Any]:
    """Write the same passages for both sides: train.jsonl, rows.npy [N, 512], tokenizer."""
    source = data / "tokenizers" / "bert-base-uncased" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(source))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = list(passages(tokenizer, data / "pretrain", most_tokens))
    with (work / "train.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text, _ in found)
    flat = np.concatenate([np.array(ids, dtype=np.uint16) for _, ids in found])
    np.save(work / "rows.npy", flat[: len(flat) // LENGTH * LENGTH].reshape(-1, LENGTH))
    roles = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_file=str(source), **roles).save_pretrained(work / "tokenizer")
    return {"passages": len(found), "tokens": len(flat), "mean_tokens": round(len(flat) / len(found), 1)}


def write_config(work: Path, size: str, published: dict[str, Any], kernels: str) -> Path:
    """Write the config of the published runs, with these kernels."""
    layers, hidden, rows = SIZES[size]
    is_tiny = size == "tiny"
    (recipe,) = [published["config"]["900"]]
    model = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": hidden // 64,
        "tie_word_embeddings": True,
        "max_position_embeddings": LENGTH,
        **recipe["model"],
        "init": "scaled",
        "kernel_backend": "torch" if is_tiny else kernels,
    }
    trainer = {
        "output_dir": str(work / "run"),
        "max_steps": 100_000,
        "per_device_train_batch_size": rows,
        "torch_compile": not is_tiny,
        "mixed_precision": "no" if is_tiny else "bf16",
        "save_steps": 0,
        "eval_steps": 0,
        "gradient_clipping": 1.0,
        **recipe["trainer"],
        **({"cuda_graphs": False} if is_tiny else {}),
    }
    sections = {
        "model": model,
        "tokenizer": {"path": str(work / "tokenizer"), "allow_special_token_rewrite": True},
        "dataset": {
            "path": str(work / "train.jsonl"),
            "cache_dir": str(work / "cache"),
            "max_seq_length": LENGTH,
            "num_workers": 2,
            "validation_split": None,
        },
        "datacollator": recipe["datacollator"],
        "optimizer": OPTIMIZER,
        "scheduler": SCHEDULER,
        "trainer": trainer,
        "seed": 0,
    }
    path = work / f"ours-{kernels}.json"
    path.write_text(json.dumps(to_dict(from_dict(sections))), encoding="utf-8")
    return path


def confidence_interval(values: list[float]) -> list[float]:
    """Return the 95 % confidence interval of the geometric mean, from three logarithms."""
    half = T_95 * stdev(values) / math.sqrt(len(values))
    return [math.exp(fmean(values) - half), math.exp(fmean(values) + half)]


def time_to_loss(published: dict[str, Any], ours_s: float, theirs_s: float, optimizer: str) -> dict[str, Any]:
    """Return the ratio of the seconds to the peer's loss, from seconds of a step and the published losses."""
    theirs = published["against"][optimizer]["peer"]
    mine = [
        {
            "seconds": int(steps) * ours_s,
            "loss": one["loss"],
            "losses": [run["test_loss"] for run in one["runs"]],
        }
        for steps, one in published["ours"].items()
    ]
    near = sorted(mine, key=lambda one: abs(one["loss"] - theirs["loss"]))[:2]
    slope = math.log(near[0]["seconds"] / near[1]["seconds"]) / (near[0]["loss"] - near[1]["loss"])
    peer_losses = [run["test_loss"] for run in theirs["runs"]]
    peer_seconds = theirs["runs"][0]["recipe"]["steps"] * theirs_s
    logarithms = [
        math.log(near[0]["seconds"] * math.exp(slope * (their - our)) / peer_seconds)
        for our, their in zip(near[0]["losses"], peer_losses, strict=True)
    ]
    return {
        "mean": math.exp(fmean(logarithms)),
        "interval": confidence_interval(logarithms),
        "our_steps": math.exp(fmean(logarithms)) * peer_seconds / ours_s,
        "peer_steps": theirs["runs"][0]["recipe"]["steps"],
        "published": published["against"][optimizer]["time"],
    }


def warm_up(children: dict[str, ArmProcess]) -> dict[str, Any]:
    """Compile all children at the same time, and profile a step of each.

    Returns the times and the profile of each child, or its error, by name.
    """
    for child in children.values():
        child.send(8)
    notes: dict[str, Any] = {}
    for name, child in children.items():
        try:
            first = child.receive()
            notes[name] = {"warm_up_s": round(first["seconds"], 1), "graphs": first["graphs"]}
        except RuntimeError as error:
            notes[name] = {"error": str(error)}
    for name in [name for name, note in notes.items() if "error" not in note]:
        try:
            profiled = children[name].call(1, is_profiled=True)
            notes[name] |= {"kernels": profiled["kernels"]}
            if profiled["refused"]:
                notes[name]["error"] = profiled["refused"]
        except RuntimeError as error:
            notes[name]["error"] = str(error)
    return notes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("published", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--kernels", nargs="+", default=["triton"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--round-seconds", type=float, default=2.0)
    parser.add_argument("--until-s", type=float, default=1e9, help="seconds after which no round is started")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    chosen = parser.parse_args()
    begun_s = time.perf_counter()
    published = json.loads(chosen.published.read_text())["detail"]
    work, size = chosen.work.resolve(), "tiny" if chosen.tiny else "53M"
    work.mkdir(parents=True, exist_ok=True)
    text = write_text(work, chosen.data, 100_000 if chosen.tiny else 3_000_000)
    layers, hidden, rows = SIZES[size]
    (work / "size.json").write_text(json.dumps({"layers": layers, "hidden": hidden, "rows": rows}))
    print(f"text after {time.perf_counter() - begun_s:.0f} s: {text}", flush=True)
    with ExitStack() as stack:
        children: dict[str, ArmProcess] = {}
        logs = {}
        for name in [*(f"ours, {kernels}" for kernels in chosen.kernels), *PEERS]:
            logs[name] = work / f"{name.replace(', ', '-')}.log"
            with logs[name].open("w") as log:
                if name in PEERS:
                    child = ArmProcess("full_rows_arm", [str(work), PEERS[name]], log)
                else:
                    path = write_config(work, size, published, name.removeprefix("ours, "))
                    child = ArmProcess("own_arm", [str(path)], log)
            children[name] = stack.enter_context(closing(child))
        notes = warm_up(children)
        for name, note in notes.items():
            if "error" in note:
                note["log"] = logs[name].read_text(errors="replace")[-1500:]
                children.pop(name).close()
            print(
                f"{name}: {note.get('error') or note['kernels']['attention']} {note.get('log', '')}",
                flush=True,
            )
        print(f"warm after {time.perf_counter() - begun_s:.0f} s", flush=True)
        steps = {}
        for name, child in children.items():
            short = child.call(8)
            steps[name] = max(8, round(chosen.round_seconds * short["steps"] / short["seconds"]))
        seconds: dict[str, list[float]] = {name: [] for name in children}
        tokens: dict[str, list[float]] = {name: [] for name in children}
        for number in range(1, chosen.rounds + 1):
            if number > 1 and time.perf_counter() - begun_s > chosen.until_s:
                print(f"no time for round {number}", flush=True)
                break
            for name in sorted(children, reverse=bool(number % 2)):
                answer = children[name].call(steps[name])
                seconds[name].append(round(answer["seconds"] / answer["steps"], 6))
                tokens[name].append(round(answer["tokens"] / answer["steps"]))
            report(chosen, published, seconds, tokens, notes, steps, text, number)


def report(
    chosen: argparse.Namespace,
    published: dict[str, Any],
    seconds: dict[str, list[float]],
    tokens: dict[str, list[float]],
    notes: dict[str, Any],
    steps: dict[str, int],
    text: dict[str, Any],
    number: int,
) -> None:
    ms = {name: 1e3 * median(each) for name, each in seconds.items()}
    times: dict[str, Any] = {}
    for name in (name for name in ms if name not in PEERS):
        times[name] = {
            PEERS[peer]: time_to_loss(published, ms[name] / 1e3, ms[peer] / 1e3, PEERS[peer])
            for peer in PEERS
            if peer in ms
        }
    first = next(iter(times.values()), {})
    value = round(max(each["mean"] for each in first.values()), 4) if len(first) == len(PEERS) else None
    detail = {
        "time": times,
        "step_ms": {name: round(each, 3) for name, each in ms.items()},
        "seconds_of_a_step": seconds,
        "steps_of_a_turn": steps,
        "tokens_of_a_step": {name: round(fmean(each)) for name, each in tokens.items()},
        "seconds_of_900_steps": {name: round(0.9 * each, 2) for name, each in ms.items()},
        "own_kernels": {name: note.get("kernels") for name, note in notes.items() if name not in PEERS},
        "peer_kernels": {PEERS[name]: note.get("kernels") for name, note in notes.items() if name in PEERS},
        "candidates": {
            path.stem.removeprefix("candidates-"): json.loads(path.read_text())
            for path in sorted(chosen.work.glob("candidates-*.json"))
        },
        "arms": {name: {k: v for k, v in note.items() if k != "kernels"} for name, note in notes.items()},
        "text": text,
        "rounds": number,
    }
    unit = "of the peer's seconds to its loss, against its better optimizer; losses as published"
    write_measurement(chosen.output, value, unit, None, detail, is_complete=number == chosen.rounds)
    shown = {
        name: {key: round(each["mean"], 3) for key, each in found.items()} for name, found in times.items()
    }
    print(
        f"round {number}: ms of a step { ({k: round(v, 2) for k, v in ms.items()}) }, time {shown}",
        flush=True,
    )


if __name__ == "__main__":
    main()
