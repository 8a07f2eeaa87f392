"""Cost of rounding to fp8 in steps: runs in bf16 and with rounded products (`fp8_trainer.py`), to equal loss.

    python benchmarks/fp8_loss.py WORK RESULTS [--size 53M] [--steps 800] [--report] [--output DIR]

WORK holds what `passages.py` wrote; RESULTS keeps finished runs (`trials.py`); `--report` starts none. Three
seeds of the recipe on torch's kernels, 32,768 tokens a step, one passage a document: in bf16, in bf16 with
85 % of the steps, and in fp8. Figure: steps in bf16 to the test loss of fp8, over the steps of fp8. A step in
fp8 has to be faster by 1.10 over this figure for a gain of 1.10. About 6 minutes on one H100 for 800 steps of
53M, 9 for 400 of 245M (estimates: it has not run there).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from measurement import write_measurement
from model_sizes import SIZES
from time_to_loss import LOSS, at_equal_loss
from trials import (
    INTERVALS,
    RECIPE,
    SEEDS,
    Run,
    Trial,
    column,
    difference,
    run_missing,
    runs_of,
    summary,
    trial,
)

GAIN, SHORT = 1.10, 0.85
PROGRAMS = {"bf16": "own_trainer.py", "fp8": "fp8_trainer.py"}


def config_of(size: str) -> dict[str, Any]:
    """Return the recipe on torch's kernels; its feed-forward width is that of the smaller model."""
    model = RECIPE["model"] | {"kernel_backend": "torch"}
    if size != "53M":
        del model["intermediate_size"]
    return RECIPE | {"model": model, "trainer": {"gradient_clipping": 1.0}}


def trials_of(chosen: argparse.Namespace) -> dict[str, Trial]:
    """Describe the runs of both precisions; those in bf16 are also shorter ones, each with its schedule."""
    numbers = {"bf16": (chosen.steps, round(SHORT * chosen.steps)), "fp8": (chosen.steps,)}
    options = ("--config", json.dumps(config_of(chosen.size), sort_keys=True))
    return {
        name: trial(program, chosen.work, name, recipes_of(numbers[name]), chosen.size, options)
        for name, program in PROGRAMS.items()
    }


def recipes_of(numbers: tuple[int, ...]) -> tuple[dict[str, int], ...]:
    return tuple({"steps": steps, "seed": seed} for seed in SEEDS for steps in numbers)


def timed_in_steps(runs: list[Run], steps: int) -> dict[str, Any] | None:
    """Return the summary of the runs of a number of steps, with these as their seconds."""
    those = [{**run, "seconds": steps} for run in runs if run["trial"]["steps"] == steps]
    return summary(those, key=LOSS)


def judge(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the runs, losses of fp8 minus those of bf16, and its steps to equal loss; None if unknown."""
    runs = {name: runs_of(chosen.results, each.name) for name, each in trials_of(chosen).items()}
    long, short = (timed_in_steps(runs["bf16"], each) for each in (chosen.steps, round(SHORT * chosen.steps)))
    low = timed_in_steps(runs["fp8"], chosen.steps)
    worth = at_equal_loss([short, long], low) if short and long and low else None
    return {
        "config": config_of(chosen.size),
        "intervals": INTERVALS,
        "loss": LOSS,
        "bf16": long,
        "bf16_shorter": short,
        "fp8": low,
        "difference": difference(column(low, LOSS), column(long, LOSS)) if long and low else None,
        "steps": worth,
        "speed_needed": None if worth is None else round(GAIN / worth["mean"], 3),
    }


def report(chosen: argparse.Namespace) -> str:
    """Write the figure, finished or not; return what the terminal shows."""
    found = judge(chosen)
    value = None if found["steps"] is None else round(found["steps"]["mean"], 4)
    if chosen.output:
        unit = "steps in bf16 to the loss of a step in fp8"
        path = chosen.output / f"fp8-loss-{chosen.size}.json"
        write_measurement(path, value, unit, None, found, is_complete=value is not None)
    keys = ("difference", "steps", "speed_needed")
    losses = {name: found[name] and found[name]["loss"] for name in ("bf16", "bf16_shorter", "fp8")}
    return json.dumps(losses | {key: found[key] for key in keys})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--size", choices=list(SIZES), default="53M")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--report", action="store_true", help="of finished runs")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    chosen.work, chosen.results = chosen.work.resolve(), chosen.results.resolve()
    chosen.results.mkdir(parents=True, exist_ok=True)
    if not chosen.report:
        failed = run_missing(
            lambda: trials_of(chosen).values(), lambda: print(report(chosen), flush=True), chosen.results
        )
        if failed:
            sys.exit(f"failed: {', '.join(failed)}")
    print(report(chosen))


if __name__ == "__main__":
    main()
