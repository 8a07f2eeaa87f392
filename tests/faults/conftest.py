"""What the fault tests share: a script in a process of its own, and runs like those of `tests/training`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.conftest import corpus, exact, make_run, metrics, outcome, run, uninterrupted

__all__ = ["corpus", "exact", "make_run", "metrics", "outcome", "run", "uninterrupted"]

ROOT = Path(__file__).parents[2]
MEMORY = Path("/dev/shm")


@pytest.fixture
def report(tmp_path):
    """Run a script beside this file and return the JSON object that it prints."""

    def run_script(name, *arguments):
        command = [sys.executable, "-m", f"tests.faults.{name}", *map(str, arguments)]
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=1200
        )
        assert done.stdout, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run_script
