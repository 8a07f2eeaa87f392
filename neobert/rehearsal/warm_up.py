"""Warm-up of a process that will train: a throw-away trainer, for which every graph of the run is compiled.

`main` is called in a process that trains afterwards: its trainer finds the device ready and its graphs
compiled. `python -m neobert.rehearsal.warm_up RESOLVED.json evaluation` leaves the graph of the evaluation in
torch's cache for other processes. Neither writes a file of the run. `step` as the second argument warms up
for a process that never evaluates.
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
    """Warm up for the run of a resolved config, or for its steps or evaluations only."""
    resolved, *only = arguments
    warm_up(read_config(Path(resolved)), only=next(iter(only), ""))


def warm_up(config: RunConfig, *, only: str = "") -> None:
    """Run the largest step and evaluation on a throw-away model, or `only` one of them."""
    import torch

    from neobert.parallel import World, use_all_cores
    from neobert.rehearsal.trials import WorstCase
    from neobert.training.loop.assembly import assemble, make_reproducible

    use_all_cores()
    world = World(config.trainer.mixed_precision, config.distributed.mode)
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
