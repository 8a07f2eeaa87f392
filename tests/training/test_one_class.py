"""Warning of a classifier that predicts one class."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from neobert.training.guards.one_class import ONE_CLASS, warn_of_one_class
from neobert.training.loop.hooks import StepReport
from neobert.training.state.train_state import TrainState


@pytest.mark.parametrize(
    ("step", "metrics", "warns"),
    [
        (10, {"eval/mcc": 0.0, "eval/accuracy": 0.9}, True),
        (10, {"eval/recall": 0.0, "eval/accuracy": 0.97}, True),
        (5, {"eval/mcc": 0.0}, False),
        (10, {"eval/mcc": 1e-3}, False),
        (10, {"eval/mcc": None}, False),
        (10, {"eval/loss": 0.0}, False),
    ],
)
def test_the_last_evaluation_is_checked(step, metrics, warns):
    state = TrainState(progress=SimpleNamespace(step=step))
    warn_of_one_class(SimpleNamespace(state=state, max_steps=10), StepReport(step, metrics))
    assert dict(state.warnings) == ({ONE_CLASS: 1} if warns else {})
