"""Format of the files in `docs/measurements/`: one figure, with its machine, versions and command."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from neobert.bench.device import package_versions

COMMIT_ENV = "NEOBERT_COMMIT"
PEERS = ("sentence-transformers", "mteb")


def write_measurement(
    path: Path,
    value: float | None,
    unit: str,
    target: float | None,
    detail: dict[str, Any],
    *,
    is_complete: bool = True,
) -> dict[str, Any]:
    """Write a figure to `path`, named after its metric, and return the content of the file.

    `value` is None if it could not be measured.

    A benchmark of several rounds writes after each, with `is_complete` false until the last: a run that a
    time limit ends keeps its finished rounds.
    """
    measurement = {
        "metric": path.stem,
        "value": value,
        "unit": unit,
        "target": target,
        "device": device_name(),
        "versions": package_versions(PEERS) | gpu_versions(),
        "commit": git_commit(),
        "command": command_line(),
        "date": time.strftime("%Y-%m-%d"),
        "detail": detail,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    if not is_complete:
        measurement["is_complete"] = False
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(measurement, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return measurement


def command_line() -> str:
    """Return the command line as typed in the repository, without machine-specific paths."""
    return shlex.join(["python", *map(strip_machine_path, sys.argv)])


def strip_machine_path(word: str) -> str:
    path, root = Path(word), Path(__file__).resolve().parents[1]
    if not path.is_absolute():
        return word
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"


def gpu_versions() -> dict[str, str]:
    """Return the versions of cuDNN and the driver, or an empty dict without a GPU."""
    if not torch.cuda.is_available():
        return {}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "cudnn": str(torch.backends.cudnn.version()),
        "driver": driver or "unknown",
    }


def git_commit() -> str:
    """Return the measured commit from git, or from the environment for a copy without git."""
    if named := os.environ.get(COMMIT_ENV):
        return named
    folder = Path(__file__).parent
    requested = subprocess.run(
        ["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return requested.stdout.strip()
