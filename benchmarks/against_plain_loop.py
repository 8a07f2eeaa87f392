"""Held-out loss of NeoBERT in this trainer and in a plain loop of torch at equal tokens.

    python benchmarks/against_plain_loop.py WORK RESULTS [--seconds 560] [--output DIR]

WORK holds what `passages.py` wrote, and the tokenizer; RESULTS keeps finished runs (`trial_runner.py`).
Sides, with both initial weights: this trainer (`recipe_screen.py`, its base trial) with its own kernels and
with torch's; `plain_loop.py` over passages, over concatenated rows, over this trainer's microbatches, and
with a cap on the logits. The differences say what the trainer does to learning, and which part of it: its
kernels, its batches and masks, or its arithmetic; and what isolated passages do. Seeds draw other weights and
masks on the two sides.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from measurement import write_measurement
from plain_loop import FORMS, MICROBATCHES, SHARE
from recipe_screen import BASE
from trial_runner import compare
from trials import (
    HERE,
    INTERVALS,
    RECIPE,
    SEEDS,
    START_S,
    Trial,
    column,
    difference,
    options_of,
    ours,
    runs_of,
    summary,
    unique,
)

OURS, TORCH, (PASSAGES, CONCATENATED) = "trainer", "trainer-torch", FORMS
SOFTCAP = "softcap"
SIDES = {
    "scaled": {OURS: 3, TORCH: 3, PASSAGES: 3, CONCATENATED: 3, SOFTCAP: 3},
    "published": {OURS: 6, TORCH: 3, PASSAGES: 6, CONCATENATED: 3, MICROBATCHES: 6},
}
"""Numbers of seeds: a process of this trainer runs three. Runs of published weights differ more."""
PAIRS = {
    "trainer": (OURS, PASSAGES),
    "kernels": (OURS, TORCH),
    "batches": (MICROBATCHES, PASSAGES),
    "arithmetic": (OURS, MICROBATCHES),
    "isolation": (PASSAGES, CONCATENATED),
    SOFTCAP: (SOFTCAP, PASSAGES),
}
KERNELS = {OURS: "auto", TORCH: "torch"}
"""The fused kernels do not take the feed-forward width of the base trial."""
ROWS = {"53M": 128, "245M": 128, "tiny": 2}
"""Of 512 tokens, in a step."""
PLAIN_STEP_S = 0.15
"""Of the plain loop, at most: it computes the logits of all tokens."""


def own(chosen: argparse.Namespace, side: str, init: str, seeds: range) -> Trial:
    """Describe the runs of some seeds, which share a compiled step."""
    base = {name: BASE[name] for name in RECIPE}  # without what the recipe of the other comparisons changes
    recipes = [{**base, "init": init, "steps": chosen.steps, "seed": seed} for seed in seeds]
    config = {"model": {"kernel_backend": KERNELS[side]}, "datacollator": {"mlm_probability": SHARE}}
    return ours(
        chosen.work, f"{side}-{init}", recipes, size=chosen.size, config=config, rows=ROWS[chosen.size]
    )


def plain(chosen: argparse.Namespace, side: str, init: str, seed: int) -> Trial:
    form = PASSAGES if side == SOFTCAP else side
    settings = {
        "form": form,
        "init": init,
        "size": chosen.size,
        "rows": ROWS[chosen.size],
        "steps": chosen.steps,
    }
    settings |= {"softcap": 30.0} if side == SOFTCAP else {}
    options = options_of({**settings, "seed": seed})
    command = (str(HERE / "plain_loop.py"), str(chosen.work), *options, "--output")
    most_s = START_S + PLAIN_STEP_S * chosen.steps
    return Trial(unique(f"plain-{side}-{init}-seed-{seed}", options), command, most_s)


def trials_of(chosen: argparse.Namespace, side: str, init: str) -> list[Trial]:
    """Return the trials of a side, with its runs in the order of seeds."""
    count = SIDES[init][side]
    if side not in KERNELS:
        return [plain(chosen, side, init, seed) for seed in range(count)]
    parts = range(0, count, len(SEEDS))
    return [own(chosen, side, init, range(first, first + len(SEEDS))) for first in parts]


def wanted(chosen: argparse.Namespace) -> Iterator[Trial]:
    for init, sides in SIDES.items():
        for side in sides:
            yield from trials_of(chosen, side, init)


def judge(chosen: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the sides by initial weights and their differences; None where seeds are missing."""
    found: dict[str, dict[str, Any]] = {}
    for init, counts in SIDES.items():
        runs = {
            side: [
                run for trial in trials_of(chosen, side, init) for run in runs_of(chosen.results, trial.name)
            ]
            for side in counts
        }
        sides = {side: summary(runs[side], range(count)) for side, count in counts.items()}
        differences = {
            name: apart(sides[one], sides[other])
            for name, (one, other) in PAIRS.items()
            if one in counts and other in counts
        }
        found[init] = {"runs": runs, "sides": sides, "differences": differences}
    return found


def apart(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the difference of two sides over the seeds that both have; None where some are missing."""
    if one is None or other is None:
        return None
    count = min(len(one["runs"]), len(other["runs"]))
    return difference(column(one, "loss")[:count], column(other, "loss")[:count])


def report(chosen: argparse.Namespace) -> str:
    """Write the differences, finished or not; return them for the terminal."""
    found = judge(chosen)
    is_complete = not any(None in each["differences"].values() for each in found.values())
    above = [each["differences"]["trainer"] for each in found.values()]
    if chosen.output:
        value = round(max(each["mean"] for each in above), 4) if is_complete else None
        detail = {"rows": ROWS[chosen.size], "steps": chosen.steps, "intervals": INTERVALS, **found}
        unit = "nats above a plain loop over the same passages, at most"
        write_measurement(
            chosen.output / "plain-loop.json", value, unit, None, detail, is_complete=is_complete
        )
    return "\n".join(line for init, each in found.items() for line in lines_of(init, each))


def lines_of(init: str, found: dict[str, Any]) -> Iterator[str]:
    for side, runs in found["runs"].items():
        yield f"{init}, {side}: " + (", ".join(f"{run['loss']:.3f}" for run in runs) or "not run")
    for name, each in found["differences"].items():
        if each is not None:
            first, last = each["interval"]
            yield f"{init}, {name}: {each['mean']:+.3f} ({first:+.3f} to {last:+.3f})"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=600, help="of 65,536 tokens; a multiple of 20")


if __name__ == "__main__":
    compare(__doc__, add_options, wanted, report, per_gpu=2)  # no seconds are compared
