"""All figures of what is learned from one command: the GPUs never wait for the last run of one comparison.

    python benchmarks/learning_figures.py WORK RESULTS [--seconds 560] [--output DIR] [--list]
        [--of time-to-loss recipe-ablations]

`--of` names the comparisons, the most important first. Their own pages say what they compare; `--list` prices
what is missing. The same command continues after a stop.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import recipe_ablations
import time_to_loss
from trial_runner import compare
from trials import Trial

COMPARISONS = {
    "time-to-loss": time_to_loss,
    "recipe-ablations": recipe_ablations,
}


def wanted(chosen: argparse.Namespace) -> Iterator[Trial]:
    for name in chosen.of:
        yield from COMPARISONS[name].wanted(chosen)


def report(chosen: argparse.Namespace) -> str:
    return "\n".join(COMPARISONS[name].report(chosen) for name in chosen.of)


def add_options(parser: argparse.ArgumentParser) -> None:
    for comparison in COMPARISONS.values():
        comparison.add_options(parser)
    parser.add_argument("--of", nargs="+", choices=list(COMPARISONS), default=list(COMPARISONS))


if __name__ == "__main__":
    compare(__doc__, add_options, wanted, report)
