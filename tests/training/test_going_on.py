"""A session that is begun again goes on from the run's own checkpoint, or begins where it began."""

from __future__ import annotations

import pytest

from launcher.process import AGAIN
from neobert import train
from neobert.config import from_dict


@pytest.mark.parametrize(
    ("asked", "has_own", "expected"),
    [
        ("never", False, "auto"),
        ("never", True, "auto"),
        ("auto", True, "auto"),
        ("latest", True, "auto"),
        ("other/checkpoints/5", False, "other/checkpoints/5"),
        ("other/checkpoints/5", True, "auto"),
    ],
)
def test_where_a_session_goes_on(tmp_path, asked, has_own, expected):
    if has_own:
        (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    config = from_dict({"trainer": {"resume_from_checkpoint": asked}})
    assert train.going_on(config, tmp_path).trainer.resume_from_checkpoint == expected


def test_the_launcher_and_the_trainer_mean_the_same_word():
    assert AGAIN == train.AGAIN


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["a", AGAIN, AGAIN]])
def test_other_words_are_refused(arguments):
    assert train.main(arguments) == 2
