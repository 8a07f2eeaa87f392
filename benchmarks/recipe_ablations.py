"""What each part of the recipe is worth: changes of the held-out loss and the time to it, three seeds each.

    python benchmarks/recipe_ablations.py WORK RESULTS [--steps 800] [--seconds 560] [--output DIR]

WORK holds what `passages.py` wrote; RESULTS keeps finished trials (`trials.py`). Each arm differs from the
recipe in one thing and sees the same tokens with the same seeds. A change of loss becomes one of time by the
slope between the recipe and a longer run of it: seconds x exp(change / slope), over those of the recipe.
An arm won or lost if the 95 % interval of its change (Student's t over paired seeds) does not hold zero.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

from measurement import write_measurement
from trials import CONFIG, RECIPE, ROWS, SEEDS, Trial, lines_of, ours, parse, parser_of, run_missing

T_95 = 4.303
"""Student's t, two degrees of freedom."""
LONGER = 1.3


@dataclass(frozen=True)
class Arm:
    """What differs from the recipe.

    Attributes:
        recipe: keys of a trial of `recipe_screen.py`.
        config: sections of the run file.
        loss: the key of the result that counts.
    """

    recipe: dict[str, Any] = field(default_factory=dict)
    config: dict[str, dict[str, Any]] = field(default_factory=dict)
    loss: str = "loss"


ARMS = {
    "recipe": Arm(),
    "init: published": Arm({"init": "published"}),
    "AdamW alone, 1e-3": Arm({"optimizer": "adamw", "lr": 1e-3, "muon_lr": None}),
    "muon_split: heads": Arm({"split": "heads"}),
    "cosine decay": Arm({"shape": "cosine"}),
    "decay over the last 40 %": Arm({"decay": 0.4}),
    "weight_decay: 0.1": Arm({"weight_decay": 0.1}),
    "averaged weights, 0.99": Arm({"ema_decay": 0.99}, loss="averaged_loss"),
    "embedding_multiplier: 1": Arm(config={"model": {"embedding_multiplier": 1.0}}),
    "20 % masked": Arm(config={"datacollator": {"mlm_probability": 0.2}}),
    "30 % masked, falling to 15 %": Arm(config={"datacollator": {"mlm_probability_final": 0.15}}),
    "every chosen token becomes [MASK]": Arm(config={"datacollator": {"mask_all": True}}),
    "z_loss: 1e-4": Arm(config={"trainer": {"z_loss": 1e-4}}),
}


def name_of(arm: str) -> str:
    return "ablation-" + "".join(each if each.isalnum() else "-" for each in arm)


LONGER_NAME = "ablation-longer"


def wanted(chosen: argparse.Namespace) -> Iterator[Trial]:
    for title, arm in ARMS.items():
        config = copy.deepcopy(CONFIG)
        for section, values in arm.config.items():
            config.setdefault(section, {}).update(values)
        recipes = [{**arm.recipe, "steps": chosen.steps, "seed": seed} for seed in SEEDS]
        yield ours(chosen.work, chosen.results, name_of(title), recipes, size=chosen.size, config=config)
    recipes = [{"steps": round(LONGER * chosen.steps), "seed": seed} for seed in SEEDS]
    yield ours(chosen.work, chosen.results, LONGER_NAME, recipes, size=chosen.size)


def judge(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per finished arm; none before the recipe and its longer run are there."""
    base, longer = lines_of(chosen.results, name_of("recipe")), lines_of(chosen.results, LONGER_NAME)
    if base is None or longer is None:
        return []
    gained = mean(run["loss"] for run in base) - mean(run["loss"] for run in longer)
    slope = gained / math.log(LONGER)
    runs = {title: lines_of(chosen.results, name_of(title)) for title in ARMS}
    return [row(title, found, base, slope) for title, found in runs.items() if found is not None]


def row(title: str, runs: list[dict[str, Any]], base: list[dict[str, Any]], slope: float) -> dict[str, Any]:
    """Compare an arm with the recipe, seed by seed."""
    key = ARMS[title].loss
    changes = [run[key] - other["loss"] for run, other in zip(runs, base, strict=True)]
    seconds = mean(run["seconds"] for run in runs) / mean(run["seconds"] for run in base)
    half = T_95 * stdev(changes) / math.sqrt(len(changes))
    low, middle, high = (
        seconds * math.exp(change / slope)
        for change in (mean(changes) - half, mean(changes), mean(changes) + half)
    )
    return {
        "arm": title,
        "loss": mean(run[key] for run in runs),
        "change": mean(changes),
        "change_95": [mean(changes) - half, mean(changes) + half],
        "time": middle,
        "time_95": [low, high],
        "runs": runs,
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=800)
    chosen = parse(parser)
    run_missing(lambda: wanted(chosen), chosen)
    rows = judge(chosen)
    for each in rows:
        low, high = each["time_95"]
        print(f"{each['arm']:36} {each['change']:+.4f}  time {each['time']:.2f} ({low:.2f} to {high:.2f})")
    if chosen.output and len(rows) == len(ARMS):
        worst = max(each["change"] for each in rows)
        detail = {"recipe": RECIPE, "config": CONFIG, "rows": ROWS, "steps": chosen.steps, "arms": rows}
        path = chosen.output / "recipe-ablations.json"
        write_measurement(path, round(worst, 4), "nats, the dearest part to leave out", None, detail)


if __name__ == "__main__":
    main()
