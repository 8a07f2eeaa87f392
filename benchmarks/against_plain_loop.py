"""Held-out loss of NeoBERT in this trainer and in a plain loop of torch at equal tokens.

    python benchmarks/against_plain_loop.py WORK RESULTS [--seconds 560] [--output DIR]

WORK holds what `passages.py` wrote, and the tokenizer; RESULTS keeps finished runs (`trial_runner.py`). Both
initial weights, three seeds: this trainer (`recipe_screen.py`, its base trial) with its own kernels and with
torch's, and `plain_loop.py` over passages and over concatenated rows. The first difference says what the
trainer does to learning, the second what its kernels do, the third what isolated passages do, and the loss in
full rows what the evaluation does. Seeds draw other weights and masks on the two sides. One more arm caps the
logits of the loop over passages with scaled weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from measurement import write_measurement
from plain_loop import FORMS, SHARE
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
    "scaled": (OURS, TORCH, PASSAGES, CONCATENATED, SOFTCAP),
    "published": (OURS, TORCH, PASSAGES, CONCATENATED),
}
PAIRS = {
    "trainer": (OURS, PASSAGES),
    "kernels": (OURS, TORCH),
    "isolation": (PASSAGES, CONCATENATED),
    SOFTCAP: (SOFTCAP, PASSAGES),
}
KERNELS = {OURS: "auto", TORCH: "torch"}
"""The fused kernels do not take the feed-forward width of the base trial."""
ROWS = {"53M": 128, "245M": 128, "tiny": 2}
"""Of 512 tokens, in a step."""
PLAIN_STEP_S = 0.15
"""Of the plain loop, at most: it computes the logits of all tokens."""


def own(chosen: argparse.Namespace, side: str, init: str) -> Trial:
    """Describe the runs of all seeds, which share a compiled step."""
    base = {name: BASE[name] for name in RECIPE}  # without what the recipe of the other comparisons changes
    recipes = [{**base, "init": init, "steps": chosen.steps, "seed": seed} for seed in SEEDS]
    rows = ROWS[chosen.size]
    config = {"model": {"kernel_backend": KERNELS[side]}, "datacollator": {"mlm_probability": SHARE}}
    return ours(chosen.work, f"{side}-{init}", recipes, size=chosen.size, config=config, rows=rows)


def plain(chosen: argparse.Namespace, side: str, init: str, seed: int) -> Trial:
    form = side if side in FORMS else PASSAGES
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
    if side in KERNELS:
        return [own(chosen, side, init)]
    return [plain(chosen, side, init, seed) for seed in SEEDS]


def wanted(chosen: argparse.Namespace) -> Iterator[Trial]:
    for init, sides in SIDES.items():
        for side in sides:
            yield from trials_of(chosen, side, init)


def judge(chosen: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the sides by initial weights and their differences; None where seeds are missing."""
    found: dict[str, dict[str, Any]] = {}
    for init, names in SIDES.items():
        runs = {
            side: [
                run for trial in trials_of(chosen, side, init) for run in runs_of(chosen.results, trial.name)
            ]
            for side in names
        }
        sides = {side: summary(lines) for side, lines in runs.items()}
        pairs = {name: pair for name, pair in PAIRS.items() if pair[0] in sides}
        differences = {name: apart(sides[one], sides[other]) for name, (one, other) in pairs.items()}
        found[init] = {"runs": runs, "sides": sides, "differences": differences}
    return found


def apart(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if one is None or other is None else difference(column(one, "loss"), column(other, "loss"))


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
