"""Take a run from one mode and number of processes to another, and say what became of its losses.

python -m tests.faults.sharded_sessions FOLDER

Prints a JSON object: for every way the losses of the steps after the change, and what the checkpoints hold.
"""

import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from neobert.parallel.sharding import local_shard
from neobert.runfiles.checkpoint.manifest import verify_checkpoint
from neobert.training.checkpoint import content, parts
from neobert.training.guards.loss_guard import FiniteGuard
from tests.faults import nursery
from tests.training.conftest import read_lines, write_corpus, write_run

# A microbatch on each of two ranks, or two on one: the same samples in every step.
WAYS: dict[str, dict[str, Any]] = {
    "whole on 1": {"ranks": 1, "mode": "replicated"},
    "whole on 2": {"ranks": 2, "mode": "replicated"},
    "parts on 2": {"ranks": 2, "mode": "fsdp2"},
}
CHANGES = (
    ("parts on 2", "whole on 1"),
    ("whole on 1", "parts on 2"),
    ("parts on 2", "whole on 2"),
)
CHANGE_AT, END = 5, 10
LARGEST_BYTES = 16 * 1024  # more than a rank's heartbeats and log come to, less than its shard


def main(folder: Path) -> None:
    corpus = write_corpus(folder)
    go(folder / "undisturbed", corpus, "whole on 1", END)
    report: dict[str, Any] = {"undisturbed": losses(folder / "undisturbed"), "files": {}, "codes": {}}
    report["evaluated"] = {"undisturbed": evaluated(folder / "undisturbed")}
    for way in WAYS:
        report["codes"][way] = go(folder / way, corpus, way, CHANGE_AT)
        saved = folder / way / "checkpoints" / str(CHANGE_AT) / "trainer_state"
        report["files"][way] = sorted(path.relative_to(saved).as_posix() for path in saved.rglob("*"))
    for first, second in CHANGES:
        name = f"{first}, then {second}"
        shutil.copytree(folder / first, folder / name, symlinks=True)
        report["codes"][name] = go(folder / name, corpus, second, END)
        report[name] = losses(folder / name)
        report["evaluated"][name] = evaluated(folder / name)
    report["codes"]["full"] = go(folder / "full", corpus, "parts on 2", END, refuse_large_files)
    report["files"]["full"] = sorted(path.name for path in (folder / "full" / "checkpoints").iterdir())
    report["codes"]["broken"] = go(folder / "broken", corpus, "parts on 2", END, break_a_save)
    report["files"]["broken"] = sorted(path.name for path in (folder / "broken" / "checkpoints").iterdir())
    report["killed"] = killed_while_joining(folder, corpus)
    report["evaluated"]["killed"] = evaluated(folder / "killed")
    report["codes"]["bad"] = go(folder / "bad", corpus, "parts on 2", END, spoil_a_weight)
    report["files"]["bad"] = (folder / "bad" / "checkpoints").exists()
    report["codes"]["flipped"] = go(folder / "flipped", corpus, "whole on 2", END, flip_a_bit)
    report["files"]["flipped"] = sorted(path.name for path in (folder / "flipped" / "checkpoints").iterdir())
    report["log of flipped"] = (folder / "flipped" / "log_0").read_text(encoding="utf-8")
    report["log of the good rank"] = (folder / "bad" / "log_0").read_text(encoding="utf-8")
    report["logs of broken"] = [(folder / "broken" / f"log_{rank}").read_text("utf-8") for rank in range(2)]
    report["log"] = (folder / "full" / "log_0").read_text(encoding="utf-8")
    print(json.dumps(report))


def refuse_large_files() -> None:
    """Have the kernel refuse to write more into one file, as a quota does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_BYTES, LARGEST_BYTES))


def break_a_save() -> None:
    """Make this rank raise an error other than OSError while it writes its rows."""

    def save_file(*_: Any) -> None:
        raise ZeroDivisionError("planted")

    parts.save_file = save_file


def killed_while_joining(folder: Path, corpus: dict[str, str]) -> dict[str, Any]:
    """Kill the rank that joins the rows of the second save, and continue in parts from what is left."""
    shutil.copytree(folder / "parts on 2", folder / "killed", symlinks=True)
    checkpoints = folder / "killed" / "checkpoints"
    codes = go(folder / "killed", corpus, "parts on 2", END, kill_at_the_join, prepared=0)
    left = sorted(path.name.partition("-")[0] for path in checkpoints.iterdir())
    points_at = (checkpoints / "latest").readlink().name
    step = verify_checkpoint(checkpoints / points_at).step
    resumed = go(folder / "killed", corpus, "parts on 2", END)
    names = sorted(path.name for path in checkpoints.iterdir())
    found = losses(folder / "killed")
    return {
        "codes": codes, "left": left, "latest": step, "resumed": resumed, "after": names, "losses": found,
    }  # fmt: skip


def kill_at_the_join() -> None:
    """Kill this process where the rows of all ranks are in the folder, and the weights are not."""
    content.open_joined_parts = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


def spoil_a_weight() -> None:
    """Have this rank's part of the model hold something that is no number when it is saved."""
    real = FiniteGuard.check_weights

    def check_weights(self: FiniteGuard, module: Any, step: int) -> None:
        with torch.no_grad():
            local_shard(module.decoder.weight).view(-1)[0] = float("nan")
        real(self, module, step)

    FiniteGuard.check_weights = check_weights


def flip_a_bit() -> None:
    """Have the memory of this rank lose the last bit of one weight, right before a save."""
    real = FiniteGuard.check_weights

    def check_weights(self: FiniteGuard, module: Any, step: int) -> None:
        if step == END:
            with torch.no_grad():
                module.decoder.weight.view(torch.int32).view(-1)[7] ^= 1
        real(self, module, step)

    FiniteGuard.check_weights = check_weights


def go(
    run_dir: Path,
    corpus: dict[str, str],
    way: str,
    max_steps: int,
    fault: Callable[[], None] | None = None,
    prepared: int = -1,
) -> list[int]:
    ranks = WAYS[way]["ranks"]
    sections: dict[str, Any] = {
        "trainer": {
            "max_steps": max_steps,
            "gradient_accumulation_steps": 2 // ranks,
            "logging_steps": 1,
            "eval_steps": 0,
        },
        "scheduler": {"total_steps": END},
        "distributed": {"nproc_per_node": ranks, "mode": WAYS[way]["mode"]},
    }
    return nursery.run_ranks(write_run(run_dir, corpus, sections), ranks, fault, prepared)


def losses(run_dir: Path) -> dict[int, float]:
    lines = read_lines(run_dir / "metrics.jsonl")
    return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}


def evaluated(run_dir: Path) -> float:
    """Return the loss of the evaluation at the end."""
    return read_lines(run_dir / "metrics.jsonl")[-1]["eval/loss"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
