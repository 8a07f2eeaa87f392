"""Time to the held-out loss that `transformers.Trainer` reaches: this trainer's seconds over the peer's.

    python benchmarks/time_to_loss.py WORK RESULTS --steps 3120 [--seconds 560] [--output DIR]

WORK holds what `passages.py` wrote; RESULTS keeps finished trials (`trials.py`). The peer (`peer_trainer.py`)
gets one run at each rate, and two more seeds at the best; this trainer (`recipe_screen.py`) gets three seeds
of the recipe at each number of `--steps`. The figure is the mean time of the fewest steps whose mean loss is
at or below the peer's, over the peer's mean time. Clocks start at the first optimizer step, and evaluations
are outside.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measurement import write_measurement
from trials import (
    CONFIG,
    RECIPE,
    ROWS,
    SEEDS,
    Trial,
    ours,
    parse,
    parser_of,
    peer,
    result,
    run_missing,
    summary,
)

PEER_RATES = (5e-4, 1e-3, 2e-3)
PEER_STEPS = 5_538
"""Of 32,768 tokens: 300 s of the Trainer on an H200. Larger steps end higher (docs/learning.md)."""
TARGET = 1 / 3


def peer_name(rate: float, seed: int) -> str:
    return f"peer-{rate:g}-seed-{seed}"


def wanted(chosen: argparse.Namespace) -> Iterator[Trial]:
    """Yield all trials that can be named by now: other seeds of the peer wait for its best rate."""

    def of_peer(rate: float, seed: int) -> Trial:
        name = peer_name(rate, seed)
        return peer(chosen.work, name, steps=chosen.peer_steps, rate=rate, seed=seed, size=chosen.size)

    yield from (of_peer(rate, 0) for rate in PEER_RATES)
    for steps in chosen.steps:
        for seed in SEEDS:
            recipe = {"steps": steps, "seed": seed}
            name = f"ours-{steps}-seed-{seed}"
            yield ours(chosen.work, chosen.results, name, [recipe], size=chosen.size)
    if all(result(chosen.results, peer_name(rate, 0)) for rate in PEER_RATES):
        yield from (of_peer(best_rate(chosen.results), seed) for seed in SEEDS[1:])


def best_rate(results: Path) -> float:
    return min(PEER_RATES, key=lambda rate: (result(results, peer_name(rate, 0)) or {})["loss"])


def judge(chosen: argparse.Namespace) -> tuple[float | None, dict[str, Any]]:
    """Return the ratio, None where it cannot be told yet, and what it was made of."""
    results = chosen.results
    found: dict[str, Any] = {"recipe": RECIPE, "config": CONFIG, "rows": ROWS}
    by_rate = {f"{rate:g}": result(results, peer_name(rate, 0)) for rate in PEER_RATES}
    found["peer_by_rate"] = by_rate
    if not all(by_rate.values()):
        return None, found
    found["peer"] = theirs = summary(result(results, peer_name(best_rate(results), seed)) for seed in SEEDS)
    found["ours"] = {
        steps: summary(result(results, f"ours-{steps}-seed-{seed}") for seed in SEEDS)
        for steps in chosen.steps
    }
    reached = [
        each
        for _, each in sorted(found["ours"].items())
        if each and theirs and each["loss"] <= theirs["loss"]
    ]
    return (reached[0]["seconds"] / theirs["seconds"] if reached and theirs else None), found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[3120])
    parser.add_argument("--peer-steps", type=int, default=PEER_STEPS)
    chosen = parse(parser)
    run_missing(lambda: wanted(chosen), chosen)
    ratio, found = judge(chosen)
    print(f"time to the peer's loss: {'not known' if ratio is None else f'{ratio:.3f} of its time'}")
    if chosen.output and ratio is not None:
        path = chosen.output / "time-to-loss.json"
        write_measurement(path, round(ratio, 4), "of the peer's seconds to its loss", TARGET, found)


if __name__ == "__main__":
    main()
