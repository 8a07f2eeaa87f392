"""Loss of runs in float8, compared with bf16: on one GPU, or with weights that two GPUs gather in fp8.

    python benchmarks/low_precision.py WORK_DIR [--ranks 2] [--steps 300] [--recipes NAME ...]
        [--seconds 600] [--output DIR]

Every run is this trainer without a preflight and without evaluations, from the same weights on the same text,
and is ended after its last step: a Llama of width 2,048 in packed rows.
One GPU: 24 blocks, 4,096 tokens a step, in bf16 and in each recipe. One more run in bf16, uncompiled, shows
what rounding alone changes. Three at the same time.
Two GPUs: 4 blocks under FSDP2, 16,384 tokens a step, in bf16 and then in `float8_tensorwise` with gathered
fp8; NCCL's log has the bytes of its all-gathers. The text is in the folder of NEOBERT_TEST_DATA (pretrain/,
tokenizers/bert-base-uncased/), else CPython's own documentation. Figure: the largest relative difference of a
recipe's loss, averaged over 10 steps. After `--seconds`, and the first of two after half of them, runs are
killed, and compared as far as they came. Needs the extra `torchao`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import signal
import subprocess
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from loss_parity import WINDOW, smoothed, text_and_tokenizer
from measurement import write_measurement
from unchecked_run import write_run

from launcher.process.child_start import dying_with_parent
from launcher.process.process_tree import kill_tree
from launcher.process.trainer_process import Topology, child_environment, trainer_command
from neobert.runfiles.run_dir import METRICS, RESOLVED
from profiles.registry import resolve_run

BF16, TARGET = "bf16", 0.01
LLAMA = {"type": "hf", "architecture": "llama", "hidden_size": 2048, "num_attention_heads": 32}
BLOCKS = {
    1: {"num_hidden_layers": 24, "intermediate_size": 5376},
    2: {"num_hidden_layers": 4, "intermediate_size": 8192},
}
"""By the number of GPUs."""
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
GATHERS = {"enable_fsdp_float8_all_gather": True, "precompute_float8_dynamic_scale_for_fsdp": True}
POLL_S = 0.2
SIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""Bytes of a value by NCCL's number of its type."""
GATHERED = re.compile(r"AllGather: opCount \w+ .*? count (\d+) datatype (\d+)")


class Arm(NamedTuple):
    """A run: its recipe, empty for bf16, and whether it is compiled."""

    recipe: str = ""
    is_compiled: bool = True


def arms_of(recipes: list[str], ranks: int) -> dict[str, Arm]:
    """Return the runs by name, in the order in which they start."""
    first, *others = recipes
    arms = {BF16: Arm(), first: Arm(first)}
    if ranks == 1:
        arms["bf16, uncompiled"] = Arm(is_compiled=False)
    return arms | {recipe: Arm(recipe) for recipe in others}


def sections(arm: Arm, steps: int, ranks: int, *, is_small: bool) -> dict[str, Any]:
    """Return a run file."""
    text, words = text_and_tokenizer()
    found: dict[str, Any] = {
        "profile": "cpu" if is_small else "gpu",
        "pretraining": None,
        "task": "causal",
        "model": LLAMA | (SMALL if is_small else BLOCKS[ranks]),
        "dataset": text | {"max_seq_length": 512 * ranks, "validation_split": None},
        "tokenizer": words,
        "optimizer": {"name": "adamw", "lr": 2e-4, "betas": [0.9, 0.95], "weight_decay": 0.1},
        "scheduler": {"name": "cosine", "warmup_steps": steps // 10, "total_steps": steps},
        "trainer": {
            "output_dir": "run",
            "max_steps": steps,
            "per_device_train_batch_size": 2 if is_small else 8,
            "gradient_accumulation_steps": 1,
            "mixed_precision": "bf16",
            "torch_compile": arm.is_compiled and not is_small,
            "logging_steps": 1,
            "eval_steps": 0,
            "save_steps": 0,
        },
    }
    if arm.recipe:
        found["torchao"] = {"enable": True, "recipe": arm.recipe} | (GATHERS if ranks > 1 else {})
    if ranks > 1:
        found["distributed"] = {"mode": "fsdp2", "nproc_per_node": ranks}
    return found


def train(
    work: Path, steps: int, ranks: int, until_s: float, name: str, arm: Arm, *, is_small: bool
) -> dict[str, Any]:
    """Train a run until a monotonic time; return losses by step, and the bytes a rank sends to all-gathers.

    Raises ValueError with the end of the log of a run that failed.
    """
    folder = work / name
    run_file = folder / "run.json"
    (folder / "logs").mkdir(parents=True)
    began_s = time.monotonic()
    run_file.write_text(json.dumps(sections(arm, steps, ranks, is_small=is_small)), encoding="utf-8")
    write_run(folder, resolve_run(None, [run_file], []).config)
    run_steps(folder, steps, ranks, until_s)
    losses = losses_of(folder / METRICS)
    logs = sorted(folder.glob("nccl.*"), key=lambda file: file.stat().st_size)
    sent = gathered(logs[-1].read_text("utf-8", "replace")) if logs and losses else {}
    return {
        "seconds": round(time.monotonic() - began_s),
        "losses": losses,
        "gathered_bytes_per_step": {size: number / len(losses) for size, number in sent.items()},
    }


def run_steps(folder: Path, steps: int, ranks: int, until_s: float) -> None:
    """Train until a monotonic time or the last step, without the checkpoint that follows it."""
    command = trainer_command(folder / RESOLVED, folder / "logs", Topology(nproc_per_node=ranks))
    nccl = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL", "NCCL_DEBUG_FILE": str(folder / "nccl.%p")}
    environment = child_environment(folder / "error.json", ranks, nccl)
    dying, metrics = dying_with_parent(signal.SIGTERM), folder / METRICS
    with (folder / "output.log").open("wb") as output:
        child = subprocess.Popen(command, env=environment, stdout=output, stderr=output, preexec_fn=dying)
        while child.poll() is None and time.monotonic() < until_s:
            if metrics.exists() and metrics.read_bytes().count(b"\n") >= steps:
                break
            time.sleep(POLL_S)
        code = child.poll()
        kill_tree(child)
    if code:
        logs = [folder / "output.log", *(folder / "logs").iterdir()]
        end = "\n".join(log.read_text("utf-8", "replace")[-3000:] for log in logs)
        raise ValueError(f"{folder.name} ended with exit code {code}:\n{end}")


def losses_of(metrics: Path) -> list[float]:
    """Return the loss of each step of whole lines. Raises ValueError if one is missing or repeated."""
    lines = metrics.read_text("utf-8").split("\n")[:-1] if metrics.exists() else []
    rows = [row for row in map(json.loads, lines) if row.get("train/loss") is not None]
    if [row["step"] for row in rows] != [*range(1, len(rows) + 1)]:
        raise ValueError(f"{metrics}: a step is missing, or is there twice")
    return [row["train/loss"] for row in rows]


def gathered(log: str) -> dict[str, int]:
    """Return the bytes that one rank sent to all-gathers, by the bytes of a value, from NCCL's log."""
    found: Counter[str] = Counter()
    for count, kind in GATHERED.findall(log):
        found[str(SIZES[int(kind)])] += int(count) * SIZES[int(kind)]
    return dict(found)


def largest_difference(own: list[float], other: list[float]) -> float:
    """Return the largest relative difference of two curves, averaged over `WINDOW` steps, in common steps.

    NaN if these are fewer.
    """
    pairs = zip(smoothed(own), smoothed(other), strict=False)
    return max((abs(a / b - 1) for a, b in pairs), default=math.nan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=1)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--recipes", nargs="+", help="by default float8_rowwise and float8_tensorwise")
    parser.add_argument("--seconds", type=float, default=600.0, help="kill runs after this time")
    parser.add_argument("--small", action="store_true", help="a toy on CPUs")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    both = ["float8_rowwise", "float8_tensorwise"] if chosen.ranks == 1 else ["float8_tensorwise"]
    arms = arms_of(chosen.recipes or both, chosen.ranks)
    began_s = time.monotonic()
    run = partial(train, chosen.work.resolve(), chosen.steps, chosen.ranks, is_small=chosen.small)
    sides: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(3 if chosen.ranks == 1 else 1) as pool:
        names = {}
        for number, (name, arm) in enumerate(arms.items(), start=1):
            share = 1 if chosen.ranks == 1 else number / len(arms)
            names[pool.submit(run, began_s + share * chosen.seconds, name, arm)] = name
        for ended in as_completed(names):
            sides[names[ended]] = found_or_error(ended)
            report(sides, arms, chosen)


def found_or_error(ended: Future[dict[str, Any]]) -> dict[str, Any]:
    """Return what a run gave; one that failed does not stop the others."""
    try:
        return ended.result()
    except ValueError as error:
        return {"error": str(error), "losses": []}


def report(sides: dict[str, dict[str, Any]], arms: dict[str, Arm], chosen: argparse.Namespace) -> None:
    """Print and write what is known once a run has ended."""
    base = sides.get(BF16, {"losses": []})["losses"]
    differences = {name: largest_difference(side["losses"], base) for name, side in sides.items()}
    print(
        *(f"{name}: {len(sides[name]['losses'])} steps, {differences[name]:.3%}" for name in sides), sep="; "
    )
    newest = [*sides.values()][-1]
    print({key: value for key, value in newest.items() if key != "losses"}, flush=True)
    if chosen.output:
        known = {name: value for name, value in differences.items() if not math.isnan(value)}
        detail = {name: side | {"largest": known.get(name)} for name, side in sides.items()}
        lengths = [len(sides[name]["losses"]) if name in sides else 0 for name in arms]
        write_measurement(
            chosen.output / f"low-precision-{chosen.ranks}gpu.json",
            max((known[name] for name in known if arms[name].recipe), default=None),
            f"relative difference, {WINDOW} steps",
            TARGET,
            detail,
            is_complete=min(lengths) == chosen.steps,
        )


if __name__ == "__main__":
    main()
