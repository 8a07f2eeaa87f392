"""A hook runs on its cadence, and at the ends where it says so."""

from __future__ import annotations

import pytest
import torch

from neobert.training.hooks import Hook
from neobert.training.stopwatch import Stopwatch


def due(**cadence):
    hook = Hook(name="hook", act=lambda trainer: None, **cadence)
    return [step for step in range(11) if hook.is_due(step, 10)]


@pytest.mark.parametrize(
    ("cadence", "steps"),
    [
        ({"every": 4}, [4, 8, 10]),
        ({"every": 5}, [5, 10]),
        ({"every": 4, "at_start": True}, [0, 4, 8, 10]),
        ({"every": 4, "at_end": False}, [4, 8]),
        ({"every": 0}, [10]),
        ({"every": 0, "at_start": True}, [0, 10]),
        ({"every": 100}, [10]),
    ],
)
def test_cadence(cadence, steps):
    assert due(**cadence) == steps


def test_the_stopwatch_adds_sections_up_and_starts_anew(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(now)))
    stopwatch = Stopwatch(torch.device("cpu"))  # 0
    for _ in range(2):
        with stopwatch.section("optimizer"):  # 1-2, 3-4
            pass
    with stopwatch.host_section("data_wait"):  # 5-6
        pass
    with stopwatch.excluded():  # 7-8
        pass
    assert stopwatch.read() == (8.0, {"optimizer": 2000.0, "data_wait": 1000.0})  # at 9, less 1
    assert stopwatch.read() == (1.0, {})  # from 10 to 11
