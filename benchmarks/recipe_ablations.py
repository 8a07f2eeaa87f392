"""Value of each key of the recipe: changes of the held-out loss and of the time to it, three seeds each.

    python benchmarks/recipe_ablations.py WORK RESULTS [--ablation-steps 800] [--seconds 560] [--output DIR]
        [--size 245M] [--keys optimizer.name ...] [--name short-pieces]

WORK holds what `passages.py` wrote, and the tokenizer; RESULTS keeps finished runs (`trial_runner.py`). Each
arm differs from the recipe in one thing and sees as many tokens, with the same seeds. A change of loss
becomes one of time by the slope between the recipe and a longer run of it: seconds x exp(change / slope),
over those of the recipe; seconds count only for an arm whose steps do other work. A key is kept if the 95 %
interval of that time (Student's t over paired seeds) says that training with it is faster, and has lost if it
is slower; else nothing is shown.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from measurement import write_measurement
from trial_runner import compare
from trials import (
    CONFIG,
    INTERVALS,
    RECIPE,
    ROWS,
    SEEDS,
    Run,
    Trial,
    finite,
    interval,
    ours,
    ratio,
    runs_of,
)

from neobert.config.schedules import steps_of
from neobert.config.schema import TrainerConfig

Verdict = Literal["kept", "lost", "not shown"]
MAIN_SIZE = "53M"
LONGER = 1.3
BASE, LONGER_BASE = "recipe", "recipe, longer"


@dataclass(frozen=True)
class Arm:
    """One difference from the recipe.

    Attributes:
        key: of a run file, which the verdict is about.
        adds: whether the arm sets a key that the recipe leaves alone; else it takes one away.
        recipe: keys of a trial of `recipe_screen.py`, which share a compiled step.
        config: sections of the run file, which need a compiled step of their own.
        costs: whether its steps do more work, so that their seconds count; those of other arms are noise.
    """

    key: str
    adds: bool
    recipe: dict[str, Any] = field(default_factory=dict)
    config: dict[str, dict[str, Any]] = field(default_factory=dict)
    costs: bool = False


ARMS = {
    "init: published": Arm("model.init", False, {"init": "published"}),
    "AdamW alone, 1e-3": Arm(
        "optimizer.name", False, {"optimizer": "adamw", "lr": 1e-3, "muon_lr": None}, costs=True
    ),
    "cosine decay": Arm("scheduler.name: linear", False, {"shape": "cosine"}),
    "weight_decay: 0.1": Arm("optimizer.weight_decay", False, {"weight_decay": 0.1}),
    "muon_split: heads": Arm("optimizer.muon_split: heads", True, {"split": "heads"}, costs=True),
    "decay over the last 40 %": Arm("scheduler.decay_percent", True, {"decay": 0.4}),
    "1-sqrt decay over the last 40 %": Arm("scheduler.name: 1-sqrt", True, {"shape": "1-sqrt", "decay": 0.4}),
    "sqrt decay": Arm("scheduler.name: sqrt", True, {"shape": "sqrt"}),
    "every chosen token becomes [MASK]": Arm("datacollator.mask_all", True, {"mask_all": True}),
    "embedding_multiplier: 1": Arm(
        "model.embedding_multiplier", False, config={"model": {"embedding_multiplier": 1.0}}
    ),
    "20 % masked": Arm(
        "datacollator.mlm_probability", False, config={"datacollator": {"mlm_probability": 0.2}}, costs=True
    ),
    "z_loss: 1e-4": Arm("trainer.z_loss", True, config={"trainer": {"z_loss": 1e-4}}, costs=True),
}
BATCH_WARMUP = "half the batch in the first quarter"
BATCH_WARMUP_KEY = "trainer.batch_size_warmup_steps"
LENGTH_WARMUPS = {
    "pieces of 128 tokens in the first quarter": (128, 4),
    "pieces of 64 tokens in the first quarter": (64, 4),
    "pieces of 32 tokens in the first quarter": (32, 4),
    "pieces of 128 tokens in the first half": (128, 2),
    "pieces of 64 tokens in the first half": (64, 2),
}
"""Tokens of a piece, and the part of the steps that has them: one over this number."""
LENGTH_WARMUP_KEY = "trainer.sequence_length_warmup_steps"


def arms(chosen: argparse.Namespace) -> dict[str, Arm]:
    """Return the chosen arms for a number of steps; the batch-size warm-up takes more for as many tokens."""
    halves = {"per_device_train_batch_size": ROWS[chosen.size] // 2, "gradient_accumulation_steps": 2}
    warmup = halves | {"batch_size_warmup_steps": chosen.ablation_steps // 4}
    steps = steps_of(2 * chosen.ablation_steps, TrainerConfig(**warmup))
    found = ARMS | {
        BATCH_WARMUP: Arm(BATCH_WARMUP_KEY, True, {"steps": steps}, {"trainer": warmup}, costs=True)
    }
    for title, (length, part) in LENGTH_WARMUPS.items():
        pieces = {
            "sequence_length_warmup_steps": chosen.ablation_steps // part,
            "sequence_length_warmup_length": length,
        }
        found[title] = Arm(LENGTH_WARMUP_KEY, True, config={"trainer": pieces})  # its steps take no longer
    return {
        title: arm
        for title, arm in found.items()
        if (not chosen.keys or arm.key in chosen.keys) and (not chosen.arms or title in chosen.arms)
    }


def without_own_step(chosen: argparse.Namespace) -> dict[str, Arm]:
    """Return the chosen arms that share the recipe's compiled step."""
    return {title: arm for title, arm in arms(chosen).items() if not arm.config}


def shared(chosen: argparse.Namespace, seed: int) -> Trial:
    """Describe all runs of a seed that share the recipe's compiled step: first those of the recipe itself."""
    recipes: list[dict[str, Any]] = [{}, {"steps": round(LONGER * chosen.ablation_steps)}]
    recipes += [arm.recipe for arm in without_own_step(chosen).values()]
    filled = [{"steps": chosen.ablation_steps, **recipe, "seed": seed} for recipe in recipes]
    return ours(chosen.work, f"ablations-seed-{seed}", filled, size=chosen.size)


def alone(chosen: argparse.Namespace, title: str, arm: Arm) -> Trial:
    """Describe the runs of an arm with a compiled step of its own."""
    config = copy.deepcopy(CONFIG)
    for section, values in arm.config.items():
        config.setdefault(section, {}).update(values)
    recipes = [{"steps": chosen.ablation_steps, **arm.recipe, "seed": seed} for seed in SEEDS]
    name = "".join(each if each.isalnum() else "-" for each in title)
    return ours(chosen.work, f"ablation-{name}", recipes, size=chosen.size, config=config)


def wanted(chosen: argparse.Namespace) -> Iterator[Trial]:
    yield from (shared(chosen, seed) for seed in SEEDS)
    yield from (alone(chosen, title, arm) for title, arm in arms(chosen).items() if arm.config)


def all_runs(chosen: argparse.Namespace) -> dict[str, list[Run]]:
    """Return the finished runs of each arm, of the recipe and of its longer run, in the order of seeds."""
    titles = [BASE, LONGER_BASE, *without_own_step(chosen)]
    found: dict[str, list[Run]] = {title: [] for title in titles}
    for seed in SEEDS:
        for title, run in zip(titles, runs_of(chosen.results, shared(chosen, seed).name), strict=False):
            found[title].append(run)
    for title, arm in arms(chosen).items():
        if arm.config:
            found[title] = runs_of(chosen.results, alone(chosen, title, arm).name)
    return found


def judge(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each arm with all seeds; none before the recipe and its longer run have them."""
    found = all_runs(chosen)
    base, longer = found[BASE], found[LONGER_BASE]
    if min(len(base), len(longer)) < len(SEEDS):
        return []
    slope = fmean(a["loss"] - b["loss"] for a, b in zip(base, longer, strict=True)) / math.log(LONGER)
    return [
        row(title, arm, found[title], base, slope)
        for title, arm in arms(chosen).items()
        if len(found[title]) == len(SEEDS)
    ]


def row(title: str, arm: Arm, runs: list[Run], base: list[Run], slope: float) -> dict[str, Any]:
    """Compare an arm with the recipe, seed by seed."""
    about = {"arm": title, "key": arm.key, "runs": runs}
    losses = [finite(run) for run in runs]
    if None in losses:
        return about | {"verdict": "lost" if arm.adds else "kept", "diverged": losses.count(None)}
    changes = [loss - other["loss"] for loss, other in zip(losses, base, strict=True)]
    base_s = [run["seconds"] for run in base]
    own_s = [run["seconds"] for run in runs] if arm.costs else base_s
    time = ratio([s * math.exp(change / slope) for s, change in zip(own_s, changes, strict=True)], base_s)
    return about | {
        "verdict": verdict(arm.adds, *time["interval"]),
        "loss": fmean(losses),
        "change": {"mean": fmean(changes), "interval": interval(changes)},
        "seconds": ratio(own_s, base_s),
        "time": time,
    }


def verdict(adds: bool, low: float, high: float) -> Verdict:
    """Return what the interval of the arm's time over the recipe's says about the key."""
    if low <= 1.0 <= high:
        return "not shown"
    return "kept" if (high < 1.0) == adds else "lost"


def report(chosen: argparse.Namespace) -> str:
    """Write all rows, finished or not; return a line of each for the terminal."""
    rows, num_arms = judge(chosen), len(arms(chosen))
    if chosen.output:
        changes = [each["change"]["mean"] for each in rows if "change" in each]
        detail = {
            "recipe": RECIPE,
            "config": CONFIG,
            "rows": ROWS[chosen.size],
            "steps": chosen.ablation_steps,
            "intervals": INTERVALS,
            "base": all_runs(chosen)[BASE],
            "longer": all_runs(chosen)[LONGER_BASE],
            "arms": rows,
        }
        write_measurement(
            chosen.output / f"{chosen.name}{'' if chosen.size == MAIN_SIZE else '-' + chosen.size}.json",
            round(max(changes), 4) if changes else None,
            "nats, the largest change of an arm",
            None,
            detail,
            is_complete=len(rows) == num_arms,
        )
    return "\n".join([*map(line_of, rows), f"{len(rows)} of {num_arms} arms"])


def line_of(row: dict[str, Any]) -> str:
    found = "diverged"
    if "time" in row:
        (low, high), change = row["time"]["interval"], row["change"]["mean"]
        found = f"{change:+.4f} nats, time {row['time']['mean']:.2f} ({low:.2f} to {high:.2f})"
    return f"{row['verdict']:10} {row['key']:34} {row['arm']:36} {found}"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ablation-steps", type=int, default=800)
    keys = sorted({arm.key for arm in ARMS.values()} | {BATCH_WARMUP_KEY, LENGTH_WARMUP_KEY})
    parser.add_argument("--keys", nargs="+", choices=keys, help="arms to run; default: all")
    parser.add_argument("--arms", nargs="+", help="titles of the arms to run; default: all of the keys")
    parser.add_argument("--name", default="recipe-ablations", help="of the JSON file, without the size")


if __name__ == "__main__":
    # They take turns (`recipe_screen.turn`): the second starts and compiles while the first trains.
    compare(__doc__, add_options, wanted, report, per_gpu=2)
