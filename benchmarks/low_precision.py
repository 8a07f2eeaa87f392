"""Loss of runs in float8, compared with bf16: on one GPU, or with weights that two GPUs gather in fp8.

    python benchmarks/low_precision.py WORK_DIR [--ranks 2] [--steps 300] [--recipes NAME ...] [--output DIR]

Every run is a `neobert-launch train` from the same weights on the same text, one after the other. One GPU: a
NeoBERT of width 2,048 with 4 blocks, packed rows of 512, 8,192 tokens a step, in bf16, in each recipe, and in
the first recipe for the second third of the steps only, resumed twice. Two GPUs: a Llama of the same width
with 8 blocks under FSDP2, packed rows of 1,024, 16,384 tokens a step, in bf16 and in `float8_tensorwise` with
gathered fp8; NCCL's log has the bytes of its all-gathers. The text is in the folder of NEOBERT_TEST_DATA
(pretrain/, tokenizers/bert-base-uncased/), else CPython's own documentation. Figure: the largest relative
difference of the loss, averaged over 10 steps. Needs the extra `torchao`; about 6 minutes on one H100, 3 on
two (estimates: it has not run there).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from loss_parity import WINDOW, smoothed, text_and_tokenizer
from measurement import write_measurement

BF16, SWITCHED, TARGET = "bf16", "switched", 0.01
ROOT = Path(__file__).resolve().parents[1]
TRAIN = [sys.executable, "-m", "launcher", "train", "run.json", "--resume", "auto"]
REASON = ["--unguarded", "a measurement of losses"]
ENCODER = {"hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 32, "intermediate_size": 8064}
DECODER = ENCODER | {"type": "hf", "architecture": "llama", "num_hidden_layers": 8, "intermediate_size": 8192}
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
GATHERS = {"enable_fsdp_float8_all_gather": True, "precompute_float8_dynamic_scale_for_fsdp": True}
SIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""Bytes of a value by NCCL's number of its type."""
GATHERED = re.compile(r"AllGather: opCount \w+ .*? count (\d+) datatype (\d+)")


class Part(NamedTuple):
    """Steps of a run up to a number, in a recipe; an empty recipe is bf16."""

    recipe: str
    until: int


def arms_of(recipes: list[str], steps: int, ranks: int) -> dict[str, list[Part]]:
    """Return the parts of every run, by name."""
    arms = {BF16: [Part("", steps)]} | {recipe: [Part(recipe, steps)] for recipe in recipes}
    if ranks == 1 and recipes:
        arms[SWITCHED] = [Part("", steps // 3), Part(recipes[0], 2 * steps // 3), Part("", steps)]
    return arms


def sections(part: Part, steps: int, ranks: int, *, is_small: bool) -> dict[str, Any]:
    """Return the run file of a part."""
    (text, words), is_alone = text_and_tokenizer(), ranks == 1
    shape = ENCODER if is_alone else DECODER
    device = {"kernel_backend": "auto"} if is_alone else {}
    found: dict[str, Any] = {
        "profile": "cpu" if is_small else "gpu",
        "pretraining": None,
        "task": "pretrain" if is_alone else "causal",
        "model": shape | device | (SMALL if is_small else {}),
        "dataset": text | {"max_seq_length": 512 if is_alone else 1024, "validation_split": 0.05},
        "tokenizer": words,
        "optimizer": {"name": "adamw", "lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1},
        "scheduler": {"name": "cosine", "warmup_steps": steps // 10, "total_steps": steps},
        "trainer": {
            "output_dir": "run",
            "max_steps": part.until,
            "per_device_train_batch_size": 2 if is_small else 16 // ranks,
            "gradient_accumulation_steps": 1,
            "mixed_precision": "bf16",
            "torch_compile": not is_small,
            "logging_steps": 1,
            "eval_steps": 0,
            "save_steps": 0,
        },
    }
    if part.recipe:
        found["torchao"] = {"enable": True, "recipe": part.recipe} | ({} if is_alone else GATHERS)
    if not is_alone:
        found["distributed"] = {"mode": "fsdp2", "nproc_per_node": ranks}
    return found


def train(folder: Path, parts: list[Part], steps: int, ranks: int, *, is_small: bool) -> dict[str, Any]:
    """Train the parts of a run; return its losses by step, and the bytes that a rank sends to all-gathers."""
    folder.mkdir(parents=True)
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL", "NCCL_DEBUG_FILE": str(folder / "nccl.%p")}
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    for part in parts:
        values = sections(part, steps, ranks, is_small=is_small)
        (folder / "run.json").write_text(json.dumps(values), encoding="utf-8")
        environment = os.environ | paths | (log if ranks > 1 else {})
        subprocess.run([*TRAIN, *REASON], cwd=folder, env=environment, check=True)
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text("utf-8").splitlines()]
    losses = {row["step"]: row["train/loss"] for row in rows if row.get("train/loss") is not None}
    if [*losses] != [*range(1, steps + 1)]:
        raise ValueError(f"{folder.name}: losses of {len(losses)} of {steps} steps, or in another order")
    logs = sorted(folder.glob("nccl.*"), key=lambda file: file.stat().st_size)
    sent = gathered(logs[-1].read_text("utf-8", "replace")) if logs else {}
    return {"losses": [*losses.values()], "gathered_bytes_per_step": {k: v / steps for k, v in sent.items()}}


def gathered(log: str) -> dict[str, int]:
    """Return the bytes that one rank sent to all-gathers, by the bytes of a value, from NCCL's log."""
    found: Counter[str] = Counter()
    for count, kind in GATHERED.findall(log):
        found[str(SIZES[int(kind)])] += int(count) * SIZES[int(kind)]
    return dict(found)


def largest_difference(own: list[float], other: list[float]) -> float:
    """Return the largest relative difference of two curves, each averaged over `WINDOW` steps."""
    return max(abs(a / b - 1) for a, b in zip(smoothed(own), smoothed(other), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=1)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--recipes", nargs="+", help="by default float8_rowwise and float8_tensorwise")
    parser.add_argument("--small", action="store_true", help="a toy on CPUs")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    both = ["float8_rowwise", "float8_tensorwise"] if chosen.ranks == 1 else ["float8_tensorwise"]
    arms = arms_of(chosen.recipes or both, chosen.steps, chosen.ranks)
    sides: dict[str, dict[str, Any]] = {}
    for name, parts in arms.items():
        folder = chosen.work.resolve() / name
        sides[name] = train(folder, parts, chosen.steps, chosen.ranks, is_small=chosen.small)
        sides[name]["largest"] = largest_difference(sides[name]["losses"], sides[BF16]["losses"])
        print(name, f"{sides[name]['largest']:.3%}", sides[name]["gathered_bytes_per_step"], flush=True)
        if chosen.output:
            path = chosen.output / f"low-precision-{chosen.ranks}gpu.json"
            worst = max(side["largest"] for side in sides.values())
            unit, is_complete = f"relative difference, {WINDOW} steps", len(sides) == len(arms)
            write_measurement(path, worst, unit, TARGET, sides, is_complete=is_complete)


if __name__ == "__main__":
    main()
