"""Run a benchmark in child processes that take turns, and report its result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from neobert.bench.comparison import compare, compare_with_baseline, require_matching_baseline
from neobert.bench.request import Data, Request
from neobert.errors import ERROR_FILE_ENV, EXIT_TRAINING_FAILED, ProjectError, read_error_file
from neobert.plurals import counted
from neobert.receipt import utc_now

KIND, FORMAT_VERSION = "neobert-bench", 1
ARM = "neobert.bench.arm"
TIMEOUT_S = 10.0
Turns = dict[str, list[dict[str, Any]]]


def run_benchmark(request: Request) -> dict[str, Any]:
    """Run warm-up and all rounds; return the report.

    The order of the arms alternates, so that a drift of clock rate or temperature favours neither. Raises
    `ProjectError` if the baseline is not comparable, or if a child process ends early.
    """
    with start_workers(request) as arms:
        about = {name: arm.call("describe") for name, arm in arms.items()}
        require_matching_baseline(request, next(iter(about.values())))
        for name, arm in arms.items():
            about[name] |= arm.call("cold_peak")
            log_progress(f"{name}: {counted(request.trim, 'warm-up step')}")
            arm.call("warm_up", count=request.trim)
        turns: Turns = {name: [] for name in arms}
        for number in range(request.rounds):
            for name in sorted(arms, reverse=bool(number % 2)):
                turns[name].append(arms[name].call("turn", count=request.steps_per_turn))
            log_progress(f"round {number + 1} of {request.rounds}: {format_rates(turns)}")
        ends = {name: arm.call("finish") for name, arm in arms.items()}
    return build_report(request, about, turns, ends)


@contextmanager
def start_workers(request: Request) -> Iterator[dict[str, Worker]]:
    """Start a child process for each arm; kill them after the `with` block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="neobert-bench-")))
        arms = {}
        for name, config in request.arms.items():
            path = folder / f"{name}.json"
            path.write_text(json.dumps(config), encoding="utf-8")
            arms[name] = stack.enter_context(closing(Worker(name, path, request.data)))
        yield arms


def build_report(
    request: Request, about: Mapping[str, Any], turns: Turns, ends: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the report as JSON values."""
    first = next(iter(about.values()))
    arms = {
        name: {
            "config_digest": request.digests[name],
            **{key: about[name][key] for key in ("attention_kernel", "compute_dtype", "data_fingerprint")},
            **summarize_turns(turns[name], about[name]),
            **ends[name],
            "turns": turns[name],
        }
        for name in turns
    }
    result = {
        "kind": KIND,
        "version": FORMAT_VERSION,
        "date_utc": utc_now().isoformat(timespec="seconds"),
        "device": first["device"],
        "versions": first["versions"],
        "settings": {**request.settings, "steps_per_turn": request.steps_per_turn},
        "arms": arms,
        "differences": dict(request.differences),
        "comparison": None,
        "baseline": None,
    }
    if len(arms) > 1:
        found = compare(*(token_rates(turns[name]) for name in sorted(turns)))
        result["comparison"] = found.as_json()
    if request.baseline is not None:
        result["baseline"] = compare_with_baseline(request.baseline, result)
    return result


def summarize_turns(turns: list[dict[str, Any]], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return medians over an arm's turns, and its MFU by the measured and the data-sheet peak (or None)."""
    flops_per_s = median(turn["flops"] / turn["seconds"] for turn in turns)
    peak = median(turn["peak_flops_per_s"] for turn in turns)
    nominal = about["nominal_flops_per_s"]
    return {
        "tokens_per_second": median(token_rates(turns)),
        "step_ms": median(1000 * turn["seconds"] / turn["steps"] for turn in turns),
        "flops_per_s": flops_per_s,
        "measured_peak_flops_per_s": peak,
        "cold_peak_flops_per_s": about["cold_peak_flops_per_s"],
        "nominal_peak_flops_per_s": nominal,
        "mfu_of_measured_peak": flops_per_s / peak,
        "mfu_of_nominal_peak": None if nominal is None else flops_per_s / nominal,
    }


def token_rates(turns: list[dict[str, Any]]) -> list[float]:
    """Return the tokens per second of each turn."""
    return [turn["tokens"] / turn["seconds"] for turn in turns]


def format_rates(turns: Turns) -> str:
    """Format the tokens per second of each arm in its last turn."""
    return ", ".join(f"{name} {token_rates(done[-1:])[0]:,.0f} tokens/s" for name, done in turns.items())


def log_progress(text: str) -> None:
    """Print progress to standard error; standard output is for the report."""
    print(text, file=sys.stderr, flush=True)


class Worker:
    """Child process of one arm. Requests and responses are lines of JSON."""

    def __init__(self, name: str, config: Path, data: Data) -> None:
        self.name = name
        self._error_file = config.with_suffix(".error.json")
        self._child = subprocess.Popen(
            [sys.executable, "-m", ARM, str(config), data],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, ERROR_FILE_ENV: str(self._error_file)},
            text=True,
        )

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Call the method `do` of the child's `Arm` and return its result.

        Raises `ProjectError` with the child's error if the child has ended.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._child.stdin.flush()
            answer = self._child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise self._exit_error()
        return dict(json.loads(answer))

    def close(self) -> None:
        """Kill the child; it has nothing to save."""
        self._child.kill()
        self._child.communicate()

    def _exit_error(self) -> ProjectError:
        with suppress(subprocess.TimeoutExpired):  # a child that closed its output but did not exit is killed
            self._child.wait(TIMEOUT_S)
        self._child.kill()
        code = self._child.wait()
        reported = read_error_file(self._error_file)
        if reported is not None:
            return ProjectError(
                reported.code,
                f"arm {self.name}: {reported.message}",
                reported.hint,
                reported.place,
                reported.exit_code,
            )
        hint = "see the output above; if memory ran out, measure one config at a time"
        message = f"arm {self.name} ended with exit code {code}"
        return ProjectError("bench-arm-failed", message, hint, exit_code=EXIT_TRAINING_FAILED)
