"""Whole training steps of two checkouts of this project, in turns on one GPU.

    python benchmarks/against_checkout.py OTHER PROFILE [KEY=VALUE ...] [--output DIR]

OTHER is a folder with another commit (`git worktree add OTHER COMMIT`). Both sides run the same config, which
this checkout resolves, as arms of `neobert-launch bench`: its synthetic documents, packed by the run's own
packer. The order of the two alternates. The figure is the milliseconds of a step here over those there, the
median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from measurement import write_measurement
from peers.turns import relative

from neobert.bench.conductor import Turns, Worker, log_progress, rates, rates_text
from neobert.config import to_dict
from profiles.registry import resolve_run

METRIC, TARGET = "step-against-checkout", 0.94
HERE, OTHER = "here", "other"


@contextmanager
def arms(trees: Mapping[str, Path], config: Mapping[str, Any]) -> Iterator[dict[str, Worker]]:
    """Start an arm of `bench` from each checkout; kill them after the `with` block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="against-checkout-")))
        started = {}
        for name, tree in trees.items():
            path = folder / f"{name}.json"
            path.write_text(json.dumps(config), encoding="utf-8")
            # A safe path keeps the current folder, which may be a checkout too, from going first.
            with mock.patch.dict(os.environ, PYTHONPATH=str(tree.resolve()), PYTHONSAFEPATH="1"):
                started[name] = stack.enter_context(closing(Worker(name, path, "synthetic")))
        yield started


def measure(
    workers: Mapping[str, Worker], rounds: int, steps: int, warm: int, keep: Callable[[Turns], None]
) -> tuple[Turns, dict[str, Any]]:
    """Time steps in turns; `keep` gets all turns after each round. Return them, and what the arms report."""
    about = {name: worker.call("describe") for name, worker in workers.items()}
    for worker in workers.values():
        worker.call("warm_up", count=warm)
    turns: Turns = {name: [] for name in workers}
    for number in range(rounds):
        for name in sorted(workers, reverse=bool(number % 2)):
            turns[name].append(workers[name].call("turn", count=steps))
        keep(turns)
        log_progress(f"round {number + 1} of {rounds}: {rates_text(turns)}")
    return turns, {name: about[name] | worker.call("finish") for name, worker in workers.items()}


def shares(turns: Turns) -> dict[str, float]:
    """Return the time of a step here as a share of that of the other checkout, over the rounds."""
    return relative(milliseconds(turns[HERE]), milliseconds(turns[OTHER]))


def milliseconds(turns: list[dict[str, Any]]) -> list[float]:
    return [1000 * turn["seconds"] / turn["steps"] for turn in turns]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("profile")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10, help="of each side in a round")
    parser.add_argument("--warm", type=int, default=12, help="steps before the first round")
    parser.add_argument("--output", type=Path, default=Path(), help="folder of the JSON file")
    chosen = parser.parse_args()
    config = to_dict(resolve_run(chosen.profile, overrides=chosen.overrides).config)

    def keep(turns: Turns, reports: dict[str, Any] | None = None) -> None:
        found = shares(turns)
        detail = {"shares": found, "tokens_per_second": {name: rates(turns[name]) for name in turns}}
        detail |= {
            "ms": {name: milliseconds(turns[name]) for name in turns},
            "arms": reports,
            "config": config,
        }
        path = chosen.output / f"{METRIC}.json"
        unit = "share of the other checkout's time per step"
        write_measurement(path, found["median"], unit, TARGET, detail, is_complete=reports is not None)

    with arms({HERE: Path(__file__).parents[1], OTHER: chosen.other}, config) as workers:
        turns, reports = measure(workers, chosen.rounds, chosen.steps, chosen.warm, keep)
    keep(turns, reports)
    print(json.dumps(shares(turns)))


if __name__ == "__main__":
    main()
