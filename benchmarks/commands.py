"""Commands of this project as child processes of a benchmark, and the lines that a run writes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from neobert.metric_names import TRAIN_LOSS

REASON = "benchmark: a short run with random weights"


def launcher(verb: str, run_file: Path, keys: Mapping[str, Any], *more: str) -> list[str]:
    chosen = [f"--{name}={value}" for name, value in keys.items()]
    return [sys.executable, "-m", "launcher", verb, str(run_file), *more, *chosen]


def output(command: Sequence[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout


@contextmanager
def started(command: Sequence[str], log: Path, **options: Any) -> Iterator[psutil.Popen]:
    """Start a command. At the end of the `with` block, kill it and all its descendants by SIGKILL.

    `options`: of `Popen`.
    """
    with log.open("w", encoding="utf-8") as file:
        child = psutil.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, **options
        )
    try:
        yield child
    finally:
        doomed: list[psutil.Process] = [child]
        with suppress(psutil.NoSuchProcess):
            doomed += child.children(recursive=True)
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(doomed, timeout=60)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file, of which the last one may be incomplete."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def losses_of(run_dir: Path) -> list[dict[str, Any]]:
    return [row for row in lines_of(run_dir / "metrics.jsonl") if TRAIN_LOSS in row]


def apart(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the relative differences of the losses of the steps that both sides made."""
    known = {row["step"]: row[TRAIN_LOSS] for row in theirs}
    found = {
        row["step"]: abs(row[TRAIN_LOSS] / known[row["step"]] - 1) for row in ours if row["step"] in known
    }
    return {"steps": len(found), "largest": max(found.values(), default=None), "by_step": found}
