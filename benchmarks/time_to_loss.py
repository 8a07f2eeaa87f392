"""Time to the held-out loss that `transformers.Trainer` reaches: this trainer's seconds over the peer's.

    python benchmarks/time_to_loss.py WORK RESULTS [--steps 3071 3200] [--seconds 560] [--output DIR]

WORK holds what `passages.py` wrote, and the tokenizer; RESULTS keeps finished runs (`trial_runner.py`). The
peer (`peer_trainer.py`) gets one run at each setting and two more seeds at the best; this trainer
(`recipe_screen.py`) gets three seeds of the recipe at each number of `--steps`. The figure is the time of the
fewest steps whose mean loss is at or below the peer's, over the peer's time. Where two numbers of steps are
there, `at_equal_loss` is the same by interpolation, so that its interval holds the noise of the losses too.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from measurement import write_measurement
from trial_runner import compare
from trials import (
    CONFIG,
    INTERVALS,
    RECIPE,
    ROWS,
    SEEDS,
    Trial,
    column,
    difference,
    finite,
    peer,
    ratio,
    runs_of,
    seeds_of,
    summary,
)

STEPS = (3_071, 3_200)
PEER_STEPS = 5_538
"""Of 32,768 tokens: 300 s of the Trainer on an H200. Larger steps end higher (docs/learning.md)."""
TARGET = 1 / 3


class Setting(NamedTuple):
    """Hyperparameters in which the peer is tuned."""

    rate: float
    weight_decay: float

    @property
    def title(self) -> str:
        return f"peer-{self.rate:g}-decay-{self.weight_decay:g}"


SETTINGS = (Setting(1e-3, 0.01), Setting(2e-3, 0.01), Setting(5e-4, 0.01), Setting(1e-3, 0.5))
"""The winner of an earlier screen is first: its other seeds need not wait. The last has our weight decay."""


def of_peer(chosen: argparse.Namespace, setting: Setting, seed: int) -> Trial:
    return peer(
        chosen.work,
        f"{setting.title}-{chosen.peer_steps}-seed-{seed}",
        steps=chosen.peer_steps,
        rate=setting.rate,
        weight_decay=setting.weight_decay,
        seed=seed,
        size=chosen.size,
    )


def wanted(chosen: argparse.Namespace) -> Iterator[Trial]:
    """Yield all trials that can be named by now: other seeds of the peer wait for its best setting."""
    yield from (of_peer(chosen, chosen.settings[0], seed) for seed in SEEDS)
    yield from (seeds_of(chosen.work, steps, chosen.size) for steps in chosen.steps)
    yield from (of_peer(chosen, setting, 0) for setting in chosen.settings[1:])
    if all(first_loss(chosen, setting) is not None for setting in chosen.settings):
        yield from (of_peer(chosen, best_setting(chosen), seed) for seed in SEEDS)


def first_loss(chosen: argparse.Namespace, setting: Setting) -> float | None:
    """Return the loss of the first seed: infinite if it diverged, None before it is there."""
    runs = runs_of(chosen.results, of_peer(chosen, setting, 0).name)
    if not runs:
        return None
    loss = finite(runs[0])
    return math.inf if loss is None else loss


def best_setting(chosen: argparse.Namespace) -> Setting:
    """Return the setting with the lowest loss so far."""

    def loss_of(setting: Setting) -> float:
        loss = first_loss(chosen, setting)
        return math.inf if loss is None else loss

    return min(chosen.settings, key=loss_of)


def judge(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the ratio, None where it is not known or not reached, and what it was made of."""
    best = best_setting(chosen)
    screened = {setting.title: first_loss(chosen, setting) for setting in chosen.settings}
    runs = [run for seed in SEEDS for run in runs_of(chosen.results, of_peer(chosen, best, seed).name)]
    theirs = summary(runs)
    names = {steps: seeds_of(chosen.work, steps, chosen.size).name for steps in sorted(chosen.steps)}
    each = {steps: summary(runs_of(chosen.results, name)) for steps, name in names.items()}
    mine = {steps: found for steps, found in each.items() if found is not None}
    found = {
        "recipe": RECIPE,
        "config": CONFIG,
        "rows": ROWS[chosen.size],
        "intervals": INTERVALS,
        "peer_by_setting": {
            title: "diverged" if loss == math.inf else loss for title, loss in screened.items()
        },
        "peer_setting": best.title,
        "peer": theirs,
        "ours": mine,
        "ratio": None,
    }
    if theirs is None:
        return found
    found["loss_differences"] = {
        steps: difference(column(one, "loss"), column(theirs, "loss")) for steps, one in mine.items()
    }
    reached = [one for one in mine.values() if one["loss"] <= theirs["loss"]]
    if reached:
        found["ratio"] = ratio(column(reached[0], "seconds"), column(theirs, "seconds"))
    if len(mine) > 1:
        found["at_equal_loss"] = at_equal_loss(list(mine.values()), theirs)
    return found


def at_equal_loss(mine: Sequence[dict[str, Any]], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return the ratio of the times at which our losses would be the peer's, each seed with one of the peer.

    Between (or beyond) the two numbers of steps that end nearest to the peer, the loss is taken as linear in
    the logarithm of the time.
    """
    near = sorted(mine, key=lambda one: abs(one["loss"] - theirs["loss"]))[:2]
    losses, seconds = ([column(one, key) for one in near] for key in ("loss", "seconds"))
    slope = math.log(near[0]["seconds"] / near[1]["seconds"]) / (near[0]["loss"] - near[1]["loss"])
    times = [
        ours_s * math.exp(slope * (their_loss - our_loss))
        for ours_s, our_loss, their_loss in zip(seconds[0], losses[0], column(theirs, "loss"), strict=True)
    ]
    return ratio(times, column(theirs, "seconds"))


def report(chosen: argparse.Namespace) -> str:
    """Write the figure with what it was made of, finished or not; return it for the terminal."""
    found = judge(chosen)
    share = None if found["ratio"] is None else found["ratio"]["mean"]
    if chosen.output:
        is_complete = found["peer"] is not None and len(found["ours"]) == len(chosen.steps)
        is_complete = is_complete and None not in found["peer_by_setting"].values()
        write_measurement(
            chosen.output / "time-to-loss.json",
            None if share is None else round(share, 4),
            "of the peer's seconds to its loss",
            TARGET,
            found,
            is_complete=is_complete,
        )
    return f"time to the peer's loss: {'not known' if share is None else f'{share:.3f} of its time'}"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, nargs="+", default=list(STEPS), help="of this trainer")
    parser.add_argument("--peer-steps", type=int, default=PEER_STEPS)
    parser.add_argument(
        "--settings", type=setting_of, nargs="+", default=list(SETTINGS), help="of the peer, as RATE:DECAY"
    )


def setting_of(word: str) -> Setting:
    rate, _, weight_decay = word.partition(":")
    return Setting(float(rate), float(weight_decay))


if __name__ == "__main__":
    compare(__doc__, add_options, wanted, report)
