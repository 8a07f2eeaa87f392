"""A hook runs on its cadence, and at the ends where it says so."""

from __future__ import annotations

import pytest

from neobert.training.loop.hooks import Hook


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
