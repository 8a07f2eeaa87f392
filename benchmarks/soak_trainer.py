"""Launcher and trainer of a soak: the real ones, with a record of every step's input.

    python benchmarks/soak_trainer.py train -p soak ...        # neobert-launch, whose trainer is
    python -m soak_trainer RUN_DIR/resolved.json [--again]     # neobert.train, noting steps in `given.jsonl`

A line names the process, the step that it has done, and a digest of samples, tokens and masks. The file is
never truncated: a repeated step occurs twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

TRAINER = "soak_trainer"
GIVEN = "given.jsonl"
DETERMINISTIC_ENV = "SOAK_DETERMINISTIC"


def launch(arguments: list[str]) -> int:
    """Run neobert-launch with this module as the trainer, without measuring the device at each start."""
    from launcher.cli import app
    from launcher.commands import train
    from launcher.process import trainer_process
    from validators.finding import Level

    trainer_process.TRAINER_MODULE = TRAINER
    train.default_levels = lambda _: (Level.STATIC, Level.HOST)  # others take half the time
    return app.run(arguments)


def train(arguments: list[str]) -> int:
    """Run neobert.train, and record every step."""
    from neobert import train

    note_steps(Path(arguments[0]).parent / GIVEN)
    if os.environ.get(DETERMINISTIC_ENV):
        add_in_a_fixed_order()
    train.leave(train.main(arguments))


def note_steps(path: Path) -> None:
    from neobert.training.loop import steps

    fetch, run_step = steps.fetch, steps.run_step
    given: list[Any] = []

    def noted_fetch(trainer: Any) -> list[Any]:
        given[:] = fetch(trainer)
        return list(given)

    def noted_step(trainer: Any) -> None:
        run_step(trainer)
        line = {"pid": os.getpid(), "step": trainer.progress.step, "digest": digest(given)}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    steps.fetch, steps.run_step = noted_fetch, noted_step


def digest(batches: list[Any]) -> str:
    """Return a digest of the samples, their order and the masks of a step."""
    found = hashlib.sha256()
    for batch in batches:
        for tensor in (batch.sample_ids, batch.input_ids, batch.labels):
            found.update(tensor.numpy().tobytes())
    return found.hexdigest()[:16]


def add_in_a_fixed_order() -> None:
    """Select deterministic kernels, mainly for the embedding's gradient, which are slower."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the device is opened
    import torch

    from neobert.training.loop import session

    make_reproducible = session.make_reproducible

    def deterministic(*arguments: Any) -> None:
        make_reproducible(*arguments)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False

    session.make_reproducible = deterministic


if __name__ == "__main__":
    sys.exit(train(sys.argv[1:]) if sys.argv[1].endswith(".json") else launch(sys.argv[1:]))
