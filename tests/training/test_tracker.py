"""A tracker is somebody else's service: absent, it is an error at the start; failing, it is left out."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest

from neobert.config.schema import WandbConfig
from neobert.errors import ProjectError
from neobert.training.tracker import open_tracker

ROW = {"step": 3, "train/loss": 1.5, "perf/mfu": None}


class Session:
    def __init__(self, failing=()):
        self.failing, self.rows, self.is_finished = failing, [], False

    def log(self, data, step):
        if "log" in self.failing:
            raise ConnectionError("the server is down")
        self.rows.append((data, step))

    def finish(self):
        if "finish" in self.failing:
            raise ConnectionError("the server is down")
        self.is_finished = True


def install(monkeypatch, init):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))


def test_disabled_it_is_never_imported(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert open_tracker(WandbConfig(), tmp_path, {}) is None


def test_enabled_without_the_package_it_is_an_error_at_the_start(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ProjectError, match="not installed") as error:
        open_tracker(WandbConfig(enabled=True), tmp_path, {})
    assert (error.value.code, error.value.place) == ("TRK001", "wandb.enabled")


def test_it_gets_what_was_measured(monkeypatch, tmp_path):
    session, asked = Session(), {}
    install(monkeypatch, lambda **kwargs: (asked.update(kwargs), session)[1])
    tracker = open_tracker(WandbConfig(enabled=True, mode="offline"), tmp_path / "run", {"seed": 1})
    tracker.log(ROW)
    tracker.close()
    assert session.rows == [({"train/loss": 1.5}, 3)]
    assert session.is_finished
    assert (asked["name"], asked["mode"], asked["resume"]) == ("run", "offline", "allow")


def test_the_variable_beats_the_config(monkeypatch, tmp_path):
    modes = []
    install(monkeypatch, lambda **kwargs: (modes.append(kwargs["mode"]), Session())[1])
    for mode in ("offline", ""):
        monkeypatch.setenv("WANDB_MODE", mode)
        open_tracker(WandbConfig(enabled=True), tmp_path, {})
    assert modes == ["offline", "online"]


def test_a_resumed_run_is_the_same_run(monkeypatch, tmp_path):
    identities = []
    install(monkeypatch, lambda **kwargs: (identities.append(kwargs["id"]), Session())[1])
    for name in ("run", "run", "other"):
        open_tracker(WandbConfig(enabled=True), tmp_path / name, {})
    assert identities[0] == identities[1] != identities[2]


@pytest.mark.parametrize("failing", [("log",), ("log", "finish")])
def test_a_server_that_goes_down_is_said_once(monkeypatch, tmp_path, caplog, failing):
    install(monkeypatch, lambda **kwargs: Session(failing))
    tracker = open_tracker(WandbConfig(enabled=True), tmp_path, {})
    with caplog.at_level(logging.WARNING):
        tracker.log(ROW)
        tracker.log(ROW)
        tracker.close()
    assert caplog.text.count("the server is down") == 1


def test_a_server_that_is_down_from_the_start_stops_nothing(monkeypatch, tmp_path, caplog):
    def refuse(**kwargs):
        raise ConnectionError("no route")

    install(monkeypatch, refuse)
    assert open_tracker(WandbConfig(enabled=True), tmp_path, {}) is None
    assert "no route" in caplog.text


def test_a_run_survives_its_tracker(make_run, run, metrics, monkeypatch):
    install(monkeypatch, lambda **kwargs: Session(("log", "finish")))
    run_dir = make_run(wandb={"enabled": True})
    assert run(run_dir) == 0
    assert metrics(run_dir)[-1]["step"] == 12
