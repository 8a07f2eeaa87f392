"""Runs that cut documents into pieces, and the steps in which they do."""

import pytest

from neobert.config import from_dict
from neobert.plan.pieces import piece_length, piece_length_at

WARMUP = {"trainer": {"sequence_length_warmup_steps": 9, "sequence_length_warmup_length": 64}}


def test_the_first_steps_are_cut():
    config = from_dict(WARMUP)
    assert [piece_length_at(step, config, 100) for step in (0, 8, 9, 100)] == [64, 64, None, None]


def test_a_percentage_of_the_steps_is_cut():
    config = from_dict({"trainer": {"sequence_length_warmup_percent": 25}})
    assert piece_length(config) == 64
    assert [piece_length_at(step, config, 40) for step in (0, 9, 10)] == [64, 64, None]
    assert [piece_length_at(step, config, 8) for step in (1, 2)] == [64, None]


@pytest.mark.parametrize(
    "sections",
    [
        {},
        WARMUP | {"datacollator": {"pack_sequences": False}},
        WARMUP | {"datacollator": {"max_length": 64}},
        WARMUP | {"task": "classification"},
        {"trainer": {"sequence_length_warmup_length": 64}},
    ],
)
def test_nothing_is_cut_where_it_would_change_nothing(sections):
    config = from_dict(sections)
    assert piece_length(config) is piece_length_at(0, config, 100) is None
