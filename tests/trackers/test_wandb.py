"""Arguments and calls that Weights & Biases gets."""

import sys
from types import SimpleNamespace

import pytest

from neobert.config import from_dict, replace, to_dict
from neobert.trackers.table import requested_trackers
from neobert.trackers.tracker import TrackedRun
from neobert.trackers.wandb import WANDB

CONFIG = from_dict({"wandb": {"enabled": True}})


class FakeRun:
    def __init__(self):
        self.rows, self.is_finished = [], False

    def log(self, data, step):
        self.rows.append((data, step))

    def finish(self):
        self.is_finished = True


@pytest.fixture
def calls(monkeypatch):
    """Arguments of each wandb.init, with the run that it returned."""
    made = []

    def init(**kwargs):
        made.append(kwargs | {"run": FakeRun()})
        return made[-1]["run"]

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    return made


def start(run_dir, config=CONFIG, identity="0" * 16):
    run = TrackedRun(run_dir=run_dir, identity=identity, first_step=0, settings=to_dict(config))
    return WANDB.start(run)


def test_it_gets_the_run_and_its_metrics(calls, tmp_path):
    session = start(tmp_path / "run", replace(CONFIG, "wandb.mode", "offline"))
    session.log({"train/loss": 1.5}, 3)
    session.close()
    (call,) = calls
    assert call["run"].rows == [({"train/loss": 1.5}, 3)]
    assert call["run"].is_finished
    assert (call["name"], call["mode"], call["resume"]) == ("run", "offline", "allow")
    assert call["config"]["seed"] == 0


def test_the_variable_takes_precedence_over_the_config(calls, monkeypatch, tmp_path):
    for mode in ("offline", ""):
        monkeypatch.setenv("WANDB_MODE", mode)
        start(tmp_path)
    assert [call["mode"] for call in calls] == ["offline", "online"]


def test_a_resumed_run_is_the_same_run(calls, tmp_path):
    for identity in ("1" * 16, "1" * 16, "2" * 16):
        start(tmp_path / "run", identity=identity)
    first, second, other = (call["id"] for call in calls)
    assert first == second != other


def test_the_older_key_still_asks_for_it():
    assert (
        requested_trackers(["jsonl"], with_wandb=True)
        == requested_trackers(["jsonl", "wandb"], with_wandb=False)
        == ("wandb",)
    )
    assert requested_trackers(("wandb", "trackio", "wandb"), with_wandb=True) == ("wandb", "trackio")
    assert requested_trackers(["jsonl"], with_wandb=False) == ()
