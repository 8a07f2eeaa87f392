"""The config that an arm of a benchmark measures."""

import gc
from types import SimpleNamespace

from neobert.bench.arm import Arm, without_warm_up_phases
from neobert.config import from_dict
from neobert.plan.pieces import piece_length, piece_length_at
from neobert.training.loop.hooks import GarbageCollector, collect_between_steps


def test_a_benchmark_measures_the_steps_after_the_warm_ups():
    cut = {"sequence_length_warmup_steps": 9, "sequence_length_warmup_length": 64}
    growing = {"gradient_accumulation_steps": 4, "batch_size_warmup_steps": 9}
    config = without_warm_up_phases(from_dict({"trainer": cut | growing}))
    assert (config.trainer.batch_size_warmup_steps, config.trainer.gradient_accumulation_steps) == (0, 4)
    assert [piece_length_at(step, config, 9) for step in (0, 1)] == [64, None]
    assert piece_length(config) == 64  # its slots are those of the run
    percent = without_warm_up_phases(from_dict({"trainer": {"sequence_length_warmup_percent": 25}}))
    assert [piece_length_at(step, percent, 9) for step in (0, 1)] == [64, None]
    assert without_warm_up_phases(from_dict({})) == from_dict({})


def test_what_compilation_left_is_collected_before_the_turns():
    arm = Arm.__new__(Arm)
    arm._collector, arm._rows = GarbageCollector(), []
    arm._advance, arm._new_hooks = lambda count: 0.0, list
    arm.trainer = SimpleNamespace(progress=SimpleNamespace(step=15))
    with collect_between_steps():
        left = [[]]
        arm.warm_up(15)
        assert all(left is not each for each in gc.get_objects())
