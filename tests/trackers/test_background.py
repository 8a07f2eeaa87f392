"""A tracker that is missing, raises or hangs: reported once, and training neither stops nor waits."""

import logging
import threading
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from neobert.errors import ProjectError
from neobert.trackers import background
from neobert.trackers.background import close_trackers, open_trackers
from neobert.trackers.table import TRACKERS
from neobert.trackers.tracker import TrackedRun

RUN = TrackedRun(run_dir=Path("demo"), identity="0" * 16, first_step=0, settings={})
ROW = {"step": 3, "train/loss": 1.5, "perf/mfu": None}


class Session:
    """A tracker that records calls, and does `harm` in the method named `where`."""

    def __init__(self, where="", harm=lambda: None):
        self.where, self.harm, self.calls = where, harm, []
        self.reach("start")

    def reach(self, method, *arguments):
        if method == self.where:
            self.harm()
        self.calls.append((method, *arguments))

    def log(self, values, step):
        self.reach("log", values, step)

    def close(self):
        self.reach("close")


def opened(monkeypatch, start):
    """Open trackio with another `start`."""
    fake = TRACKERS["trackio"]._replace(start=start)
    monkeypatch.setitem(TRACKERS, "trackio", fake)
    monkeypatch.setattr("importlib.metadata.version", lambda package: "1")
    (found,) = open_trackers(["trackio"], RUN)
    return found


def fail():
    raise ConnectionError("the server is down")


def test_lines_arrive_in_order_without_step_and_nulls(monkeypatch):
    session = Session()
    found = opened(monkeypatch, lambda run: session)
    found.log(ROW)
    found.log(ROW | {"step": 4})
    close_trackers([found])
    assert session.calls[1:] == [("log", {"train/loss": 1.5}, 3), ("log", {"train/loss": 1.5}, 4), ("close",)]


@pytest.mark.parametrize("name", [name for name, tracker in TRACKERS.items() if tracker.package])
def test_a_missing_package_is_an_error_before_the_first_step(name, monkeypatch):
    def refuse(package):
        raise PackageNotFoundError(package)

    monkeypatch.setattr("importlib.metadata.version", refuse)
    with pytest.raises(ProjectError, match=f"package {TRACKERS[name].package} is not installed") as error:
        open_trackers([name], RUN)
    assert (error.value.code, error.value.place) == ("TRK001", "trackers")


@pytest.mark.parametrize("where", ["start", "log", "close"])
def test_one_that_raises_is_reported_once_and_dropped(where, monkeypatch, caplog):
    with caplog.at_level(logging.WARNING):
        found = opened(monkeypatch, lambda run: Session(where, fail))
        for _ in range(3):
            found.log(ROW)
        close_trackers([found])
        found._thread.join()
    assert caplog.text.count("the server is down") == 1
    assert "tracker trackio failed" in caplog.text


@pytest.mark.parametrize("where", ["start", "log"])
def test_one_that_hangs_is_reported_once_and_delays_nothing(where, monkeypatch, caplog):
    released, reached = threading.Event(), threading.Event()

    def hang():
        reached.set()
        released.wait(60)

    with caplog.at_level(logging.WARNING):
        found = opened(monkeypatch, lambda run: Session(where, hang))
        found.log(ROW)
        assert reached.wait(60)
        before_s = time.perf_counter()
        for _ in range(100):
            found.log(ROW)
        assert time.perf_counter() - before_s < 5, "a line costs far less than a step"
        monkeypatch.setattr(background, "LONGEST_WAIT_S", 0.0)
        for _ in range(3):
            found.log(ROW)
        close_trackers([found])
        assert not released.is_set()  # nothing above has waited for the tracker
        released.set()
        found._thread.join()
    assert caplog.text.count("did not accept a line") == 1


def test_one_that_hangs_at_its_end_is_left_behind(monkeypatch, caplog):
    released = threading.Event()
    monkeypatch.setattr(background, "CLOSE_LIMIT_S", 0.01)
    with caplog.at_level(logging.WARNING):
        found = opened(monkeypatch, lambda run: Session("close", lambda: released.wait(60)))
        found.log(ROW)
        close_trackers([found])
        released.set()
        found._thread.join()
    assert caplog.text.count("did not finish within") == 1


def test_trackers_that_hang_at_their_end_share_one_time_limit(monkeypatch, caplog):
    released, waited = threading.Event(), []
    monkeypatch.setattr(background, "CLOSE_LIMIT_S", 0.05)
    hanging = [opened(monkeypatch, lambda run: Session("close", lambda: released.wait(60))) for _ in range(3)]
    for each in hanging:
        monkeypatch.setattr(
            each, "wait", lambda limit_s, wait=each.wait: (waited.append(limit_s), wait(limit_s))
        )
    close_trackers(hanging)
    assert not released.is_set()
    released.set()
    for each in hanging:
        each._thread.join()
    assert waited[1:] == [0, 0], "nothing is left of the limit after the first"
    assert caplog.text.count("did not finish within") == 3
