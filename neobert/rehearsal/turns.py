"""Timed steps in turns: `python -m neobert.rehearsal.turns RESOLVED.json FOLDER NAME`.

For turn k, the process waits for the file NAME_go_k, trains a few steps, and writes NAME_turn_k.json with
their times and losses. Two processes can thus be timed alternately on one device: a higher temperature or the
power limit affects both. No file of the run is written. The process that started this one ends it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from neobert.atomic_write import write_atomically
from neobert.config.schema import RunConfig
from neobert.rehearsal.parent import POLL_S
from neobert.train import configure_logging, read_config
from neobert.training.loop.signals import Signals

STEPS = 8
"""Steps per turn; the first turn also compiles."""
LIMIT_S = 600.0
"""Maximum wait for a turn in seconds; the other process compiles in its first turn."""


def main(arguments: list[str]) -> None:
    """Train in turns; write the result of each turn. Raises `TimeoutError` as `train_in_turns` does."""
    configure_logging()
    resolved, folder, name = arguments
    for turn, steps in enumerate(train_in_turns(read_config(Path(resolved)), Path(folder), name)):
        write_atomically(Path(folder, f"{name}_turn_{turn}.json"), json.dumps(steps).encode())


def train_in_turns(config: RunConfig, folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield each turn's step times in seconds, mean losses and kernels, trained in this process alone.

    Raises `TimeoutError` if a turn is not requested within 600 seconds.
    """
    from neobert.bench.arm import without_warm_up_phases
    from neobert.parallel import World, use_all_cores
    from neobert.training.loop.assembly import assemble, make_reproducible
    from neobert.training.loop.steps import run_step

    use_all_cores()
    distributed = replace(config.distributed, nproc_per_node=1, nnodes=1)
    single = replace(without_warm_up_phases(config), distributed=distributed)
    world = World.from_config(single)
    make_reproducible(single, world)
    run_dir = folder / f"{name}_run"
    run_dir.mkdir()
    trainer = assemble(single, run_dir, world, Signals(), None)
    kernels = f"{trainer.task.backbone.kernels}, {trainer.task.backbone.attention}"
    with closing(trainer.batches):
        for turn in count():
            await_file(folder / f"{name}_go_{turn}")
            seconds, losses = [], []
            for _ in range(STEPS):
                start_s = time.perf_counter()
                run_step(trainer)
                losses.append(trainer.progress.loss.take())  # waits for the device
                seconds.append(time.perf_counter() - start_s)
            yield {"seconds": seconds, "losses": losses, "kernels": kernels}


def await_file(file: Path) -> None:
    """Wait until a file exists. Raises `TimeoutError` after 600 seconds."""
    deadline_s = time.monotonic() + LIMIT_S
    while not file.exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{file.name} was not written within {LIMIT_S:g} s")
        time.sleep(POLL_S)


if __name__ == "__main__":
    main(sys.argv[1:])
