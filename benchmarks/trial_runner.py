"""Runs missing trials (`trials.py`), one process after another, and keeps each run that has ended.

A folder of results has NAME.jsonl, a line for each finished run. Commands add up: one that was stopped
continues where it was, and a trial whose recipe changed has another name.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from trials import ROWS, Trial, result_path, runs_of

from launcher.process.child_start import dying_with_parent

INPUTS = ("train.jsonl", "passages.npz", "tokenizer")


def compare(
    description: str | None,
    add_options: Callable[[argparse.ArgumentParser], None],
    wanted: Callable[[argparse.Namespace], Iterable[Trial]],
    report: Callable[[argparse.Namespace], str],
) -> None:
    """Run the program of a comparison.

    wanted: names all trials that can be known by now, the most important first.
    report: writes the figures and returns them for the terminal; called after every trial.
    """
    chosen = parse(description, add_options)
    print(report(chosen), flush=True)
    failed = run_missing(lambda: wanted(chosen), lambda: print(report(chosen), flush=True), chosen)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def parse(
    description: str | None, add_options: Callable[[argparse.ArgumentParser], None]
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--size", choices=list(ROWS), default="53M")
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing that would end later")
    parser.add_argument("--output", type=Path, help="folder of the JSON files")
    add_options(parser)
    chosen = parser.parse_args()
    chosen.until = time.time() + chosen.seconds
    chosen.work, chosen.results = chosen.work.resolve(), chosen.results.resolve()
    if absent := [name for name in INPUTS if not (chosen.work / name).exists()]:
        parser.error(f"{chosen.work.name} has no {', '.join(absent)}: see docs/learning.md")
    chosen.results.mkdir(parents=True, exist_ok=True)
    return chosen


def run_missing(
    wanted: Callable[[], Iterable[Trial]], ended: Callable[[], None], chosen: argparse.Namespace
) -> list[str]:
    """Run what is missing and fits into the time; return the names of trials that failed.

    A trial that fails, or ends without all its runs, is not started again by this call.
    """
    tried: set[str] = set()
    failed: list[str] = []
    while fitting := [
        trial
        for trial in missing(wanted(), chosen.results)
        if trial.name not in tried and time.time() + trial.start_s + trial.run_s < chosen.until
    ]:
        tried.add(fitting[0].name)
        if run(fitting[0], chosen):
            failed.append(fitting[0].name)
        ended()
    return failed


def missing(wanted: Iterable[Trial], results: Path) -> list[Trial]:
    return [trial for trial in wanted if len(runs_of(results, trial.name)) < len(trial.recipes)]


def run(trial: Trial, chosen: argparse.Namespace) -> int:
    """Run what is left of a trial; return its exit code. A killed command ends its trial too."""
    print(trial.name, flush=True)
    left = trial.recipes[len(runs_of(chosen.results, trial.name)) :]
    recipes = chosen.results / f"{trial.name}.recipes"
    recipes.write_text(json.dumps(left), encoding="utf-8")
    options = ["--until", str(chosen.until - trial.run_s)]
    output = ["--output", str(result_path(chosen.results, trial.name))]
    command = [sys.executable, *trial.command, str(recipes), *options, *output]
    return subprocess.run(command, preexec_fn=dying_with_parent(signal.SIGTERM), check=False).returncode
