"""Those that wait for the process that prepares believe in it as long as it shows progress."""

import os
import time

import pytest

from neobert.data.store.build_lock import build_lock
from neobert.errors import ProjectError

LIMIT_S = 10.0


@pytest.fixture
def clock(monkeypatch):
    """A clock that each look at the owner moves on by a second, and what happens then."""
    now = {"s": 0.0, "happens": lambda: None}

    def sleep(_):
        now["s"] += 1.0
        now["happens"]()

    monkeypatch.setattr(time, "monotonic", lambda: now["s"])
    monkeypatch.setattr(time, "sleep", sleep)
    return now


def test_an_owner_that_goes_on_is_waited_for(tmp_path, clock):
    lock = tmp_path / "lock"
    owner = build_lock(lock)
    tell = owner.__enter__()

    def goes_on():
        before = lock.stat().st_mtime_ns
        while lock.stat().st_mtime_ns == before:  # kernels before 6.13 count in milliseconds
            tell()
        if clock["s"] == 5 * LIMIT_S:
            owner.__exit__(None, None, None)

    clock["happens"] = goes_on
    with build_lock(lock, LIMIT_S):
        assert clock["s"] == 5 * LIMIT_S


def test_a_clock_that_is_set_ends_no_wait(tmp_path, clock, monkeypatch):
    owner = build_lock(tmp_path / "lock")
    owner.__enter__()
    real = time.time

    def is_set():
        monkeypatch.setattr(time, "time", lambda: real() + 86_400)
        if clock["s"] == 3:
            owner.__exit__(None, None, None)

    clock["happens"] = is_set
    with build_lock(tmp_path / "lock", LIMIT_S):
        assert clock["s"] == 3


def test_a_cache_that_is_removed_meanwhile_is_told(tmp_path):
    with build_lock(tmp_path / "cache" / "lock") as tell:
        (tmp_path / "cache" / "lock").unlink()
        with pytest.raises(ProjectError, match="was removed during") as caught:
            tell()
    assert (caught.value.code, caught.value.place) == ("DAT009", str(tmp_path / "cache"))


@pytest.mark.parametrize("plant", ["symlink_to", "hardlink_to", "mkfifo", "mkdir"])
def test_what_has_the_name_of_the_lock_is_left_alone(plant, tmp_path):
    victim, lock = tmp_path / "victim", tmp_path / "lock"
    victim.write_text("precious")
    {"mkfifo": lambda: os.mkfifo(lock), "mkdir": lock.mkdir}.get(
        plant, lambda: getattr(lock, plant)(victim)
    )()
    with pytest.raises(ProjectError, match="not a regular file") as caught, build_lock(lock):
        pass
    assert (caught.value.code, caught.value.place) == ("DAT009", str(lock))
    assert victim.read_text() == "precious"
