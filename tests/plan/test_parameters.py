"""Counts that are published, and the roundings behind them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config.schema import ModelConfig, RunConfig
from neobert.families.neobert.spec import feed_forward_width
from neobert.families.table import shape_of
from neobert.plan import round_up

NEOBERT = ModelConfig()


@pytest.mark.parametrize(
    ("change", "vocab_size", "expected"),
    [
        ({}, 30_522, 245_136_954),
        ({"tie_word_embeddings": True}, 30_522, 221_665_536),
        ({"tie_word_embeddings": True, "num_hidden_layers": 12}, 30_592, 108_448_512),
    ],
)
def test_published_sizes(change, vocab_size, expected):
    run = RunConfig(model=replace(NEOBERT, **change))
    assert shape_of(run, vocab_size).parameters.total == expected


@pytest.mark.parametrize(
    ("intermediate_size", "activation", "expected"),
    [
        (3072, "swiglu", 2048),
        (1024, "swiglu", 688),
        (512, "swiglu", 344),
        (3072, "gelu", 3072),
        (1, "swiglu", 0),
    ],
)
def test_feed_forward_width(intermediate_size, activation, expected):
    model = replace(NEOBERT, intermediate_size=intermediate_size, hidden_act=activation)
    assert feed_forward_width(model) == expected


@given(st.integers(1, 10**6), st.integers(1, 1000))
def test_round_up(value, multiple):
    rounded = round_up(value, multiple)
    assert rounded % multiple == 0
    assert 0 <= rounded - value < multiple
