"""Warning of a model that has learned nothing that its evaluation shows."""

from types import SimpleNamespace

import numpy as np
import pytest

from neobert.tasks.classification.metrics import matthews
from neobert.training.guards.nothing_learned import (
    NOTHING_LEARNED,
    guess_correlation,
    warn_if_nothing_learned,
)
from neobert.training.loop.hooks import StepReport
from neobert.training.state.train_state import TrainState


@pytest.mark.parametrize(
    ("step", "metrics", "message"),
    [
        (10, {"eval/mcc": 0.0, "eval/accuracy": 0.9}, "same class"),
        (10, {"eval/recall": 0.0, "eval/accuracy": 0.97}, "no labelled word"),
        (5, {"eval/mcc": 0.0}, ""),
        (
            10,
            {"eval/mcc": -0.1, "eval/accuracy": 0.65},
            "eval/mcc is -0.10, and random guesses reach 0.20 on 100",
        ),
        (10, {"eval/spearman": 0.1}, "no sign of learning"),
        (10, {"eval/mcc": 0.3}, ""),
        (10, {"eval/mcc": None}, ""),
        (10, {"eval/loss": 0.0}, ""),
    ],
)
def test_the_last_evaluation_is_checked(step, metrics, message):
    state = TrainState(progress=SimpleNamespace(step=step))
    task = SimpleNamespace(num_evaluated=100, num_classes=2)
    warn_if_nothing_learned(SimpleNamespace(state=state, max_steps=10, task=task), StepReport(step, metrics))
    assert dict(state.warnings) == ({NOTHING_LEARNED: 1} if message else {})
    assert message in state.warning_messages.get(NOTHING_LEARNED, "")


@pytest.mark.parametrize("num_classes", [2, 5, 50])
def test_guesses_seldom_exceed_their_bound(num_classes):
    draw = np.random.default_rng(3)
    guessed, true = draw.integers(num_classes, size=(2, 2000, 100))
    found = np.array([matthews(*pair) for pair in zip(guessed, true, strict=True)])
    assert 0.01 < np.mean(found > guess_correlation(100, num_classes)) < 0.04
