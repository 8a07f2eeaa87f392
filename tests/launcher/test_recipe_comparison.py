"""The comparison of low precision with bf16: what it is compared with, and a process that ends early."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.preflight import recipe_comparison
from launcher.preflight.recipe_comparison import TurnProcess, remove_low_precision
from launcher.preflight.rehearsal_children import RehearsalState
from launcher.probes.probe import IncompleteError, TimedOutError
from neobert.config import from_dict
from neobert.families.table import requested_kernels

SLEEPS, ENDS = "import time; time.sleep(60)", "raise SystemExit(3)"


@pytest.fixture
def taking(tmp_path: Path):
    children = []

    def start(code: str, limit_s: float = 60.0) -> TurnProcess:
        children.append(subprocess.Popen([sys.executable, "-c", code]))
        stage = RehearsalState(tmp_path, 1, time.monotonic() + 60)
        return TurnProcess(stage, "recipe", children[-1], time.monotonic() + limit_s)

    yield start
    for child in children:
        child.kill()
        child.wait()


def test_a_recipe_is_compared_with_the_fastest_kernels_of_bf16():
    config = from_dict({"model": {"kernel_backend": "torch"}, "torchao": {"enable": True}})
    assert requested_kernels(config)[0] == "torch"
    other = remove_low_precision(config)
    assert not other.torchao.enable
    assert requested_kernels(other)[0] == "auto"


@pytest.mark.child
def test_a_turn_returns_what_the_process_wrote(taking, tmp_path):
    run = taking(SLEEPS)
    (tmp_path / "recipe_turn_0.json").write_text(json.dumps({"seconds": [1.0], "losses": [2.0]}))
    run.begin(0)
    assert (tmp_path / "recipe_go_0").exists()
    assert run.end(0) == {"seconds": [1.0], "losses": [2.0]}


@pytest.mark.child
def test_a_process_that_ends_or_takes_too_long_is_an_incomplete_rehearsal(taking):
    with pytest.raises(IncompleteError, match="the run in recipe ended with exit code 3"):
        taking(ENDS).end(0)
    with pytest.raises(TimedOutError, match="took over 300 s and was killed at: recipe, compiling"):
        taking(SLEEPS, limit_s=0.2).end(0)


class FakeRun:
    """Notes the turns of a run in a list that several runs share."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self.events = name, events

    def begin(self, number: int) -> None:
        self.events.append(f"begin {self.name} {number}")

    def end(self, number: int) -> dict[str, list[float]]:
        self.events.append(f"end {self.name} {number}")
        seconds = 1.0 if self.name == "recipe" else 2.0
        return {"seconds": [seconds], "losses": [float(number)], "kernels": f"of {self.name}"}


@pytest.mark.parametrize("has_room", [True, False])
def test_both_compile_at_once_where_memory_has_room(has_room, tmp_path, monkeypatch):
    events: list[str] = []

    @contextmanager
    def noted(_stage, name, *_):
        yield FakeRun(name, events)
        events.append(f"kill {name}")

    monkeypatch.setattr(recipe_comparison, "start_turn_process", noted)
    config = from_dict({"torchao": {"enable": True}})
    requested: list[float] = []
    facts = recipe_comparison.compare_recipe(
        RehearsalState(tmp_path, 1, 0.0),
        config,
        lambda limit_s, _: requested.append(limit_s),
        has_room=has_room,
    )
    assert requested == [recipe_comparison.TIME_S + 10] * (1 if has_room else 2)
    assert (facts.recipe_step_s, facts.bf16_step_s, facts.recipe_loss) == (1.0, 2.0, 1.0)
    assert (facts.recipe_kernels, facts.bf16_kernels) == ("of recipe", "of bf16")
    if has_room:
        assert events[:3] == ["begin recipe 0", "begin bf16 0", "end recipe 0"]
        timed = [each.removeprefix("begin ") for each in events if each.startswith("begin")][2:]
        assert timed == ["bf16 1", "recipe 1", "recipe 2", "bf16 2"]
    else:
        assert events.index("kill recipe") < events.index("begin bf16 0")
