"""Warm-up of a process before training: compile the graphs of a run with a temporary trainer.

`main` is called in a process that trains afterwards; the device is then initialized and the graphs are
compiled. `python -m neobert.rehearsal.warm_up RESOLVED.json evaluation` fills torch's compile cache with the
evaluation graph for other processes. With `step` as second argument, only the training step is compiled. No
file of the run is written.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from neobert.config.schema import RunConfig
from neobert.train import read_config
from neobert.training.loop.signals import Signals

STEP, EVALUATION = "step", "evaluation"


def main(arguments: Sequence[str]) -> None:
    """Warm up for the config RESOLVED.json; an optional second argument is `step` or `evaluation`."""
    resolved, *only = arguments
    warm_up(read_config(Path(resolved)), only=next(iter(only), ""))


def warm_up(config: RunConfig, *, only: str = "") -> None:
    """Run the worst-case step and evaluation on a temporary model, or `only` "step" or "evaluation"."""
    import torch

    from neobert.parallel import World, use_all_cores
    from neobert.rehearsal.trials import WorstCase
    from neobert.training.loop.assembly import assemble, make_reproducible

    use_all_cores()
    world = World.from_config(config)
    make_reproducible(config, world)
    with tempfile.TemporaryDirectory() as folder:
        trainer = assemble(config, Path(folder), world, Signals(), None)
        with closing(trainer.batches):
            worst = WorstCase(trainer)
            {STEP: worst.step, EVALUATION: worst.evaluate}.get(only, worst.run)(trainer)
            del worst
    del trainer
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main(sys.argv[1:])
