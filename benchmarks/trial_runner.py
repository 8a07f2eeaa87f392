"""Runs missing trials (`trials.py`) on all visible GPUs, and keeps each run that has ended.

A folder of results has NAME.jsonl, a line for each finished run, and NAME.log, the output. Sessions add up: a
command that was stopped continues where it was, and a trial whose recipe changed has another name.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from trials import ROWS, Trial, finite, result_path, runs_of

from launcher.process.child_start import dying_with_parent

TAIL_LINES = 15
INPUTS = ("train.jsonl", "passages.npz", "tokenizer")


@dataclass
class Child:
    """A trial that is running."""

    trial: Trial
    gpu: str
    process: subprocess.Popen[bytes]
    num_done: int


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with what all comparisons take; `compare` uses `priced_parser_of`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--size", choices=list(ROWS), default="53M")
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing that would end later")
    parser.add_argument("--output", type=Path, help="folder of the JSON files")
    return parser


def priced_parser_of(description: str | None) -> argparse.ArgumentParser:
    parser = parser_of(description)
    parser.add_argument("--list", action="store_true", help="price what is missing, and start nothing")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, check the folder of text, make that of results, and start the clock."""
    chosen = parser.parse_args()
    chosen.begun_s = time.perf_counter()
    chosen.work, chosen.results = chosen.work.resolve(), chosen.results.resolve()
    if absent := [name for name in INPUTS if not (chosen.work / name).exists()]:
        parser.error(f"{chosen.work.name} has no {', '.join(absent)}: see docs/learning.md")
    chosen.results.mkdir(parents=True, exist_ok=True)
    return chosen


def compare(
    description: str | None,
    add_options: Callable[[argparse.ArgumentParser], None],
    wanted: Callable[[argparse.Namespace], Iterable[Trial]],
    report: Callable[[argparse.Namespace], str],
    per_gpu: int = 1,
) -> None:
    """Run the program of a comparison: parse its command line, then `carry_out`."""
    parser = priced_parser_of(description)
    add_options(parser)
    chosen = parse(parser)
    carry_out(lambda: wanted(chosen), lambda: report(chosen), chosen, per_gpu)


def carry_out(
    wanted: Callable[[], Iterable[Trial]],
    report: Callable[[], str],
    chosen: argparse.Namespace,
    per_gpu: int = 1,
) -> None:
    """Run what is missing, `per_gpu` trials at a time on each GPU, or price it only.

    `report` writes the figures and returns them for the terminal. It is called whenever a trial has ended: a
    machine that is taken away leaves the figures of what it did.
    """
    if chosen.list:
        price(missing(wanted(), chosen.results), chosen.results)
        return

    def wanted_now() -> Iterable[Trial]:
        report()
        return wanted()

    try:
        run_twice(wanted_now, chosen, per_gpu)
    finally:
        print(report(), flush=True)


def run_twice(wanted: Callable[[], Iterable[Trial]], chosen: argparse.Namespace, per_gpu: int = 1) -> None:
    """Run what is missing, and what failed once more: a fault of a GPU may not come again.

    Raises `TrialsFailed` for what failed again, or had no time left.
    """
    try:
        run_missing(wanted, chosen, per_gpu)
    except TrialsFailed as error:
        print(f"{error}: once more", flush=True)
        run_missing(wanted, chosen, per_gpu)
        left = {trial.name for trial in missing(wanted(), chosen.results)}
        if again := [name for name in error.names if name in left]:
            raise TrialsFailed(again) from None


def run_missing(wanted: Callable[[], Iterable[Trial]], chosen: argparse.Namespace, per_gpu: int = 1) -> None:
    """Run what is missing on all GPUs until nothing is left, or too little time.

    `wanted` names all trials that can be known by now, the most important first; it is asked again when one
    has ended. A trial that fails, or ends without all its runs, is not started again by this call. Raises
    `TrialsFailed` in the end if one failed, which does not stop the others.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with locked(chosen.results) as lock:
        session = Session(chosen, lock, per_gpu)
        try:
            while session.start_what_fits(missing(wanted(), chosen.results)):
                session.wait_for_one()
        finally:
            session.end()
    if session.failed:
        raise TrialsFailed(session.failed)


def missing(wanted: Iterable[Trial], results: Path) -> list[Trial]:
    """Return the trials with a run left, each once: comparisons share some."""
    named = {trial.name: trial for trial in wanted}
    return [trial for trial in named.values() if len(runs_of(results, trial.name)) < trial.num_runs]


def price(trials: Iterable[Trial], results: Path) -> None:
    """Print the most seconds that each missing trial takes."""
    total_s, gpus = 0.0, len(visible_gpus())
    for trial in trials:
        seconds = trial.most_s + trial.run_s * (trial.num_runs - len(runs_of(results, trial.name)) - 1)
        total_s += seconds
        print(f"{seconds:6.0f} s  {trial.name}")
    print(f"{total_s:6.0f} s at most, {total_s / gpus:.0f} s on {gpus} GPU{'s' * (gpus > 1)}")


@contextmanager
def locked(results: Path) -> Iterator[int]:
    """Hold the folder of results. Children inherit the lock: one that outlived its command still holds it."""
    with (results / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"another command, or a trial that it left, writes to {results.name}: end it first")
        yield file.fileno()


class TrialsFailed(SystemExit):
    """Trials with these names failed; the others were run."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        super().__init__(f"failed: {', '.join(self.names)}")


class Session:
    """The children of one command, and the names of those that failed."""

    def __init__(self, chosen: argparse.Namespace, lock: int, per_gpu: int) -> None:
        """`lock`: a file descriptor that the children inherit."""
        self.failed: list[str] = []
        self._chosen, self._lock = chosen, lock
        self._free = visible_gpus() * per_gpu
        self._tried: set[str] = set()
        self._running: list[Child] = []

    def start_what_fits(self, trials: Iterable[Trial]) -> bool:
        """Start trials on free GPUs while the time suffices for one more run; return whether any runs."""
        for trial in trials:
            left_s = self._chosen.seconds - self._now_s()
            if self._free and trial.name not in self._tried and trial.most_s < left_s:
                gpu = self._free.pop(0)
                self._tried.add(trial.name)
                self._tell(f"{trial.name} on GPU {gpu}")
                self._running.append(start(trial, self._chosen, gpu, left_s, self._lock))
        return bool(self._running)

    def wait_for_one(self) -> None:
        """Wait until a child has ended, and report what it did."""
        while not (ended := [child for child in self._running if child.process.poll() is not None]):
            time.sleep(0.2)
        for child in ended:
            self._running.remove(child)
            self._free.append(child.gpu)
            for line in outcome(child, self._chosen.results):
                self._tell(line)
            if child.process.returncode:
                self.failed.append(child.trial.name)

    def end(self) -> None:
        """End the children that are left, where the command is ended."""
        for child in self._running:
            child.process.terminate()
        for child in self._running:
            child.process.wait()

    def _now_s(self) -> float:
        return time.perf_counter() - self._chosen.begun_s

    def _tell(self, line: str) -> None:
        print(f"{self._now_s():6.0f} s: {line}", flush=True)


def visible_gpus() -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES may be for a child; one entry on a machine without a GPU."""
    if named := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return named.split(",")
    return [str(index) for index in range(max(1, torch.cuda.device_count()))]


def start(trial: Trial, chosen: argparse.Namespace, gpu: str, left_s: float, lock: int) -> Child:
    """Start a trial on a GPU; its runs are added to those that an earlier command has kept.

    A command that is killed cannot end its trials: the kernel sends them SIGTERM.
    """
    output = result_path(chosen.results, trial.name)
    num_done = drop_broken_line(output)
    words = list(trial.command)
    if str(chosen.work) in words:
        words[words.index(str(chosen.work))] = str(own_folder(chosen.work, gpu))
    if trial.recipes:
        recipes = chosen.results / f"{trial.name}.recipes"
        recipes.write_text(json.dumps(trial.recipes[num_done:]), encoding="utf-8")
        until = time.time() + left_s - trial.run_s
        words[-1:-1] = [str(recipes), "--until", str(until)]
    with log_path(chosen.results, trial).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *words, str(output)],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": gpu},
            stdout=log,
            stderr=log,
            pass_fds=(lock,),
            preexec_fn=dying_with_parent(signal.SIGTERM),
        )
    return Child(trial, gpu, process, num_done)


def log_path(results: Path, trial: Trial) -> Path:
    return results / f"{trial.name}.log"


def drop_broken_line(output: Path) -> int:
    """Cut the results after their last whole line; return the number of lines."""
    if not output.exists():
        return 0
    whole, end, _ = output.read_text(encoding="utf-8").rpartition("\n")
    output.write_text(whole + end, encoding="utf-8")
    return len(whole.splitlines())


def own_folder(work: Path, gpu: str) -> Path:
    """Return a folder for one GPU with the text of `work`: prepared text and run files are its own."""
    own = work.parent / f"{work.name}-gpu-{gpu}"
    own.mkdir(exist_ok=True)
    for each in INPUTS:
        if not (own / each).exists():
            (own / each).symlink_to(work / each)
    return own


def outcome(child: Child, results: Path) -> Iterator[str]:
    """Yield a line for each new run of a child that has ended, and the end of its output if it failed."""
    trial, runs = child.trial, runs_of(results, child.trial.name)
    for run in runs[child.num_done :]:
        figure = finite(run, trial.figure)
        outcome = "diverged" if figure is None else f"{trial.figure} {figure:.5g} after {run['seconds']} s"
        yield f"{trial.name}: {outcome}"
    if code := child.process.returncode:
        lines = log_path(results, trial).read_text(encoding="utf-8", errors="replace").splitlines()
        tail = "\n".join(f"    {line}" for line in lines[-TAIL_LINES:])
        yield f"{trial.name} failed with exit code {code}:\n{tail}"
    elif len(runs) < trial.num_runs:
        yield f"{trial.name}: {trial.num_runs - len(runs)} runs left"
