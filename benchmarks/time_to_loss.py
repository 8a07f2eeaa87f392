"""This trainer on its recipe against `transformers.Trainer` with ModernBERT: by the clock and by tokens.

    python benchmarks/time_to_loss.py WORK RESULTS [--optimizers adamw muon] [--output DIR]

WORK holds what `passages.py` wrote; RESULTS keeps finished runs (`trials.py`), of one text. The peer
(`peer_trainer.py`) is tuned with each optimizer: a short run at five rates and at another weight decay.
The best by the loss on held-out passages runs with three seeds, and so does this trainer's recipe
(`own_trainer.py`) at several numbers of steps. All figures are of the test passages, which no choice has
seen. `time-to-loss` is this trainer's time at the peer's loss (interpolated) over the peer's time;
`loss-at-equal-tokens` the difference of the losses. Both are against the better optimizer of the peer.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from measurement import write_measurement
from trials import (
    DEFAULT_KERNELS,
    INTERVALS,
    RECIPE,
    ROWS,
    SEEDS,
    Trial,
    column,
    difference,
    finite,
    ours,
    peer,
    ratio,
    run_missing,
    runs_of,
    summary,
)

LOSS = "test_loss"
INPUTS = ("train.jsonl", "passages.npz", "tokenizer")
PIECE = 64
STEPS, PEER_STEPS, TUNING_STEPS = (900, 675, 495), 900, 400
"""Of 32,768 tokens: one pass over the training text (`corpus/build.py`) at most. Rows of this trainer hold
some filler, so that as many of its steps have no more tokens than the peer's."""
RATES = {"adamw": (5e-4, 1e-3, 2e-3, 3e-3, 4e-3), "muon": (1e-3, 2e-3, 4e-3, 6e-3, 8e-3)}
DECAYS = {"adamw": (0.01, 0.1), "muon": (RECIPE["optimizer"]["weight_decay"], 0.1)}
"""Of all rates, and of the middle one."""


def recipes_of(optimizer: str, steps: int) -> list[dict[str, Any]]:
    """Return the settings in which the peer is tuned; AdamW beside Muon has half its rate, as ours has."""
    usual, other = DECAYS[optimizer]
    rates = RATES[optimizer]
    points = [*((rate, usual) for rate in rates), (rates[len(rates) // 2], other)]
    more = {"optimizer": optimizer, "steps": steps}
    return [
        {**more, "lr": rate, "weight_decay": decay} | ({"adam_lr": rate / 2} if optimizer == "muon" else {})
        for rate, decay in points
    ]


def title_of(recipe: Mapping[str, Any]) -> str:
    return "{optimizer} {lr:g}, weight decay {weight_decay:g}".format(**recipe)


def tuning(chosen: argparse.Namespace, optimizer: str) -> Trial:
    recipes = recipes_of(optimizer, chosen.tuning_steps)
    return peer(chosen.work, f"peer-{optimizer}-tuning", recipes, size=chosen.size)


def tuned(chosen: argparse.Namespace, optimizer: str) -> dict[str, float]:
    """Return the held-out loss of each setting so far, infinite if it diverged."""
    runs = runs_of(chosen.results, tuning(chosen, optimizer).name)
    recipes = recipes_of(optimizer, chosen.tuning_steps)
    losses = [finite(run) for run in runs]
    return {
        title_of(recipe): math.inf if loss is None else loss
        for recipe, loss in zip(recipes, losses, strict=False)
    }


def best(chosen: argparse.Namespace, optimizer: str) -> Trial | None:
    """Describe the peer's runs at its best setting; None before all settings have run."""
    losses = tuned(chosen, optimizer)
    recipes = recipes_of(optimizer, chosen.peer_steps)
    if len(losses) < len(recipes):
        return None
    recipe = min(recipes, key=lambda each: losses[title_of(each)])
    return peer(
        chosen.work,
        f"peer-{optimizer}-{chosen.peer_steps}",
        [{**recipe, "seed": seed} for seed in SEEDS],
        size=chosen.size,
    )


def wanted(chosen: argparse.Namespace) -> Iterator[Trial]:
    """Yield all trials that can be named by now: the peer's seeds wait for its best setting."""
    yield from (tuning(chosen, optimizer) for optimizer in chosen.optimizers)
    yield from own(chosen).values()
    finals = (best(chosen, optimizer) for optimizer in chosen.optimizers)
    yield from (trial for trial in finals if trial is not None)


def own(chosen: argparse.Namespace) -> dict[int, Trial]:
    """Describe runs of the recipe, three seeds for each number of steps; each schedule ends there."""
    return {
        steps: ours(
            chosen.work,
            f"ours-{steps}",
            [{"steps": steps, "seed": seed} for seed in SEEDS],
            size=chosen.size,
            config=config_of(steps, chosen.kernels),
        )
        for steps in chosen.steps
    }


def config_of(steps: int, kernels: str) -> dict[str, Any]:
    """Return the recipe's config: the first quarter of the steps in short pieces."""
    pieces = {"sequence_length_warmup_steps": steps // 4, "sequence_length_warmup_length": PIECE}
    model = RECIPE["model"] | ({} if kernels == DEFAULT_KERNELS else {"kernel_backend": kernels})
    return {**RECIPE, "model": model, "trainer": RECIPE["trainer"] | pieces}


def judge(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return both sides, and the comparison with each optimizer of the peer, None where it is not known."""
    runs = {steps: runs_of(chosen.results, trial.name) for steps, trial in own(chosen).items()}
    mine = {steps: found for steps, each in runs.items() if (found := summary(each, key=LOSS)) is not None}
    against = {optimizer: judge_one(chosen, optimizer, mine) for optimizer in chosen.optimizers}
    theirs = {name: runs_of(chosen.results, tuning(chosen, name).name) for name in chosen.optimizers}
    return {
        "config": {steps: config_of(steps, chosen.kernels) for steps in chosen.steps},
        "kernels": chosen.kernels,
        "rows": ROWS[chosen.size],
        "intervals": INTERVALS,
        "loss": LOSS,
        "ours": mine,
        "against": against,
        "own_kernels": next((each[0].get("kernels") for each in runs.values() if each), None),
        "peer_kernels": {name: each[0].get("kernels") for name, each in theirs.items() if each},
    }


def judge_one(
    chosen: argparse.Namespace, optimizer: str, mine: Mapping[int, dict[str, Any]]
) -> dict[str, Any]:
    trial = best(chosen, optimizer)
    theirs = None if trial is None else summary(runs_of(chosen.results, trial.name), key=LOSS)
    found = {
        "tuning": {
            title: "diverged" if loss == math.inf else loss
            for title, loss in tuned(chosen, optimizer).items()
        },
        "best": None if trial is None else title_of(trial.recipes[0]),
        "peer": theirs,
        "time": None,
        "equal_tokens": None,
    }
    if theirs is None:
        return found
    if len(mine) > 1:
        found["time"] = at_equal_loss(list(mine.values()), theirs)
    as_many = [one for one in mine.values() if one["tokens"] <= theirs["tokens"]]
    if as_many:
        nearest = max(as_many, key=lambda one: one["tokens"])
        found["equal_tokens"] = {
            "tokens": [nearest["tokens"], theirs["tokens"]],
            **difference(column(nearest, LOSS), column(theirs, LOSS)),
        }
    return found


def at_equal_loss(mine: Sequence[dict[str, Any]], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return the ratio of the times at which our losses would be the peer's, each seed with one of the peer.

    Between the two numbers of steps that end nearest to the peer, the loss is taken as linear in the
    logarithm of the time; beyond them too, and `is_inside` is then false.
    """
    near = sorted(mine, key=lambda one: abs(one["loss"] - theirs["loss"]))[:2]
    losses, seconds = ([column(one, key) for one in near] for key in (LOSS, "seconds"))
    slope = math.log(near[0]["seconds"] / near[1]["seconds"]) / (near[0]["loss"] - near[1]["loss"])
    times = [
        ours_s * math.exp(slope * (their_loss - our_loss))
        for ours_s, our_loss, their_loss in zip(seconds[0], losses[0], column(theirs, LOSS), strict=True)
    ]
    ends = sorted(one["loss"] for one in near)
    is_inside = ends[0] <= theirs["loss"] <= ends[1]
    return {**ratio(times, column(theirs, "seconds")), "is_inside": is_inside}


def report(chosen: argparse.Namespace) -> str:
    """Write both figures with what they were made of, finished or not; return them for the terminal."""
    found = judge(chosen)
    figures = {
        "time-to-loss": ("time", "of the peer's seconds to its loss, against its better optimizer"),
        "loss-at-equal-tokens": ("equal_tokens", "nats above the peer, against its better optimizer"),
    }
    lines = []
    for name, (key, unit) in figures.items():
        values = [each[key]["mean"] for each in found["against"].values() if each[key] is not None]
        is_complete = len(values) == len(found["against"]) and len(found["ours"]) == len(chosen.steps)
        value = round(max(values), 4) if values else None
        if chosen.output:
            path = chosen.output / f"{name}.json"
            write_measurement(path, value, unit, None, found, is_complete=is_complete)
        lines.append(f"{name}: {'not known' if value is None else f'{value:.3f} {unit}'}")
    for optimizer, each in found["against"].items():
        lines.append(f"peer, {optimizer}: best {each['best']}; {each['tuning']}")
        lines += [f"  {key}: {each[key]}" for key in ("time", "equal_tokens") if each[key]]
    sides = {f"ours, {steps} steps": one for steps, one in found["ours"].items()}
    sides |= {f"peer, {name}": each["peer"] for name, each in found["against"].items() if each["peer"]}
    lines += [f"{name}: loss {one['loss']:.4f} in {one['seconds']:.1f} s" for name, one in sides.items()]
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--size", choices=list(ROWS), default="53M")
    parser.add_argument("--output", type=Path, help="folder of the JSON files")
    parser.add_argument("--steps", type=int, nargs="+", default=list(STEPS), help="of this trainer")
    parser.add_argument("--kernels", default=DEFAULT_KERNELS, help="of this trainer")
    parser.add_argument("--peer-steps", type=int, default=PEER_STEPS)
    parser.add_argument("--tuning-steps", type=int, default=TUNING_STEPS, help="of the peer")
    parser.add_argument(
        "--optimizers", nargs="+", choices=list(RATES), default=list(RATES), help="of the peer"
    )
    chosen = parser.parse_args()
    chosen.work, chosen.results = chosen.work.resolve(), chosen.results.resolve()
    if absent := [name for name in INPUTS if not (chosen.work / name).exists()]:
        parser.error(f"{chosen.work.name} has no {', '.join(absent)}: see docs/learning.md")
    chosen.results.mkdir(parents=True, exist_ok=True)
    return chosen


def main() -> None:
    chosen = parse()
    print(report(chosen), flush=True)
    failed = run_missing(lambda: wanted(chosen), lambda: print(report(chosen), flush=True), chosen.results)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
