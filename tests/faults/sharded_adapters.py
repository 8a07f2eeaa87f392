"""Train an adapter on one rank, and sharded over two, and report the losses and adapters of each.

python -m tests.faults.sharded_adapters FOLDER
"""

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from tests.faults import nursery
from tests.faults.sharded_sessions import losses
from tests.training.conftest import write_corpus, write_run

ONE, SHARDED = (1, "replicated"), (2, "fsdp2")
HALF, END = 3, 6
FILES = ("adapter/adapter_model", "model", "trainer_state/frozen")


def main(folder: Path) -> None:
    base, words = pretrained(folder), words_in(folder)
    report: dict[str, Any] = {"codes": [], "losses": {}, "differences": {}}

    def go(name: str, way: tuple[int, str], steps: int) -> None:
        report["codes"] += nursery.run_ranks(adapted(folder / name, words, base, way, steps), way[0])

    go("one", ONE, END)
    go("half", SHARDED, HALF)
    for name, second in (("sharded, then sharded", SHARDED), ("sharded, then one", ONE)):
        shutil.copytree(folder / "half", folder / name, symlinks=True)
        go(name, second, END)
        report["differences"][name] = differences(folder / "one", folder / name)
    for name in ("one", *report["differences"]):
        report["losses"][name] = losses(folder / name)
    print(json.dumps(report))


def pretrained(folder: Path) -> Path:
    sections = {
        "trainer": {"max_steps": 2, "save_steps": 0, "eval_steps": 0},
        # Its text has no capitals, which would all be unknown.
        "tokenizer": {"vocab_size": 128, "lowercase": True, "strip_accents": True},
    }
    nursery.run_ranks(write_run(folder / "base", write_corpus(folder), sections), 1)
    return folder / "base" / "checkpoints" / "2"


def words_in(folder: Path) -> dict[str, Any]:
    """Write words whose label is their capital letter."""
    draw = random.Random(3)
    rows = [draw.choices(["Mara", "Jonas", "went", "home", "saw"], k=8) for _ in range(90)]
    tagged = ({"tokens": row, "tags": ["B-PER" if each.istitle() else "O" for each in row]} for row in rows)
    (folder / "words.jsonl").write_text("\n".join(map(json.dumps, tagged)), encoding="utf-8")
    return {"path": str(folder / "words.jsonl"), "cache_dir": str(folder / "words"), "eval_samples": 12}


def adapted(run_dir: Path, words: dict[str, Any], base: Path, way: tuple[int, str], steps: int) -> Path:
    """Write a run whose steps have the same samples on one rank and on two, and no dropout."""
    ranks, mode = way
    steps_and_batch = {"max_steps": steps, "gradient_accumulation_steps": 2 // ranks, "logging_steps": 1}
    sections = {
        "task": "token_classification",
        "token_classification": {"label_names": ["O", "B-PER"], "dropout": 0.0},
        "model": {"pretrained_checkpoint": str(base)},
        "tokenizer": {"path": str(base), "vocab_size": 128},
        "adapter": {"type": "lora", "r": 4},
        "trainer": {**steps_and_batch, "eval_steps": 0},
        "scheduler": {"total_steps": END},
        "distributed": {"nproc_per_node": ranks, "mode": mode},
    }
    return write_run(run_dir, words, sections)


def differences(first: Path, second: Path) -> dict[str, float]:
    """Return the largest difference between the weights of two last checkpoints, for each file."""
    found = {}
    for name in FILES:
        left, right = (weights_of(each / "checkpoints" / str(END), name) for each in (first, second))
        assert left.keys() == right.keys(), name
        found[name] = max((left[key] - right[key]).abs().max().item() for key in left)
    return found


def weights_of(checkpoint: Path, name: str) -> dict[str, Tensor]:
    file = checkpoint / f"{name}.safetensors"
    return load_file(file if file.exists() else checkpoint / name / "model.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
