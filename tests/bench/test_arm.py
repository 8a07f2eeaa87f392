"""The config that an arm of a benchmark measures."""

from __future__ import annotations

from neobert.bench.arm import of_whole_steps
from neobert.config import from_dict
from neobert.plan.pieces import piece_length, piece_length_at


def test_a_benchmark_measures_the_steps_after_the_warm_ups():
    cut = {"sequence_length_warmup_steps": 9, "sequence_length_warmup_length": 64}
    growing = {"gradient_accumulation_steps": 4, "batch_size_warmup_steps": 9}
    config = of_whole_steps(from_dict({"trainer": cut | growing}))
    assert (config.trainer.batch_size_warmup_steps, config.trainer.gradient_accumulation_steps) == (0, 4)
    assert [piece_length_at(step, config, 9) for step in (0, 1)] == [64, None]
    assert piece_length(config) == 64  # its slots are those of the run
    percent = of_whole_steps(from_dict({"trainer": {"sequence_length_warmup_percent": 25}}))
    assert [piece_length_at(step, percent, 9) for step in (0, 1)] == [64, None]
    assert of_whole_steps(from_dict({})) == from_dict({})
