"""The comparison of low precision with bf16: what it is compared with, and a process that ends early."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.preflight.recipe_comparison import TakingTurns, without_recipe
from launcher.preflight.rehearsal_children import Stage
from launcher.probes.probe import IncompleteError, TimedOutError
from neobert.config import from_dict
from neobert.families.table import requested_kernels

SLEEPS, ENDS = "import time; time.sleep(60)", "raise SystemExit(3)"


@pytest.fixture
def taking(tmp_path: Path):
    children = []

    def start(code: str, limit_s: float = 60.0) -> TakingTurns:
        children.append(subprocess.Popen([sys.executable, "-c", code]))
        stage = Stage(tmp_path, 1, time.monotonic() + 60)
        return TakingTurns(stage, "recipe", children[-1], time.monotonic() + limit_s)

    yield start
    for child in children:
        child.kill()
        child.wait()


def test_a_recipe_is_compared_with_the_fastest_kernels_of_bf16() -> None:
    config = from_dict({"model": {"kernel_backend": "torch"}, "torchao": {"enable": True}})
    assert requested_kernels(config)[0] == "torch"
    other = without_recipe(config)
    assert not other.torchao.enable
    assert requested_kernels(other)[0] == "auto"


def test_a_turn_returns_what_the_process_wrote(taking, tmp_path: Path) -> None:
    run = taking(SLEEPS)
    (tmp_path / "recipe_turn_0.json").write_text(json.dumps({"seconds": [1.0], "losses": [2.0]}))
    assert run.turn(0) == {"seconds": [1.0], "losses": [2.0]}
    assert (tmp_path / "recipe_go_0").exists()


def test_a_process_that_ends_or_takes_too_long_is_an_incomplete_rehearsal(taking) -> None:
    with pytest.raises(IncompleteError, match="the run in recipe ended with exit code 3"):
        taking(ENDS).turn(0)
    with pytest.raises(TimedOutError, match="took over 1200 s"):
        taking(SLEEPS, limit_s=0.2).turn(0)
