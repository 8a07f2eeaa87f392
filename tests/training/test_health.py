"""What wears a run down is said when it comes, once, and counted."""

from types import SimpleNamespace

import pytest
import torch

from neobert.config.schema import RunConfig, TrainerConfig
from neobert.training.guards import health
from neobert.training.guards.health import (
    CREEP,
    FAST,
    NO_GRADIENT,
    RETRIES,
    SETTLING_LINES,
    SLOW,
    SUSTAINED_LINES,
    HealthWatch,
)
from neobert.training.loop import session
from neobert.training.loop.hooks import StepReport
from neobert.training.state.train_state import TrainState
from tests.killed_run import killed_before

MIB = 2**20


@pytest.fixture
def observe(monkeypatch):
    """Show a watch one line after another; return the names of its warnings."""

    def run(lines, **sizes):
        progress = SimpleNamespace(step=0)
        trainer = SimpleNamespace(
            config=RunConfig(trainer=TrainerConfig(**sizes)),
            state=TrainState(progress=progress),
            world=SimpleNamespace(device=torch.device("cpu")),
            progress=progress,
            max_steps=1000,
        )
        watch = HealthWatch()
        for step, line in enumerate(lines, start=1):
            reported = {
                "speed": 100.0,
                "norm": 1.0,
                "reserved": None,
                "retries": None,
                "evaluations": 0,
            } | line
            trainer.state.evaluations = reported["evaluations"]
            monkeypatch.setattr(health, "gpu_bytes", lambda _, it=reported["reserved"]: (None, it, None))
            metrics = {
                "train/tokens_per_sec": reported["speed"],
                "train/grad_norm": reported["norm"],
                "memory/alloc_retries": reported["retries"],
            }
            watch(trainer, StepReport(step, metrics))
        return dict(trainer.state.warnings)

    return run


def speeds(*values):
    return [{"speed": value} for value in values]


def test_a_sound_run_is_warned_of_nothing(observe):
    assert observe(speeds(20, 60, *[100, 104, 97, 88, 101] * 10)) == {}
    assert observe([{"reserved": 1000 * MIB, "retries": 0}] * 30) == {}


def test_a_run_that_has_become_slow_is_named_once(observe):
    settled = [100.0] * (SETTLING_LINES + 5)
    assert observe(speeds(*settled, *[89.0] * (SUSTAINED_LINES - 1), 100.0)) == {}
    assert observe(speeds(*settled, *[89.0] * 20)) == {SLOW: 1}
    assert observe(speeds(*settled, *[91.0, 109.0] * 20)) == {}
    assert observe(speeds(*settled, *[89.0, 111.0] * 20)) == {}


def test_another_pace_is_named_in_both_directions_and_is_the_usual_one_from_there_on(observe, caplog):
    settled = [100.0] * (SETTLING_LINES + 5)
    assert observe(speeds(*settled, *[111.0] * 20)) == {FAST: 1}
    assert "throughput rose 11%, from 100 to 111 tokens/s (last 5 log lines)" in caplog.text
    assert observe(speeds(*settled, *[80.0] * 20, *[100.0] * 20)) == {SLOW: 1, FAST: 1}


def test_larger_steps_of_a_batch_size_warmup_have_a_speed_of_their_own(observe):
    lines = speeds(*[100.0] * 10, *[150.0] * 10, *[170.0] * 20)
    assert observe(lines, gradient_accumulation_steps=4, batch_size_warmup_steps=20) == {}
    assert observe(lines) == {FAST: 2}
    slow = speeds(*[100.0] * 10, *[150.0] * 10, *[170.0] * 10, *[100.0] * 10)
    assert observe(slow, gradient_accumulation_steps=4, batch_size_warmup_steps=20) == {SLOW: 1}


def test_steps_of_short_pieces_have_a_speed_of_their_own(observe):
    lines = speeds(*[150.0] * 20, *[100.0] * 20)
    assert observe(lines) == {SLOW: 1}
    assert observe(lines, sequence_length_warmup_steps=20) == {}


def test_the_first_lines_of_a_session_are_compared_with_none(observe):
    assert observe(speeds(20, 60, 50, *[100.0] * 20)) == {}


def test_memory_that_creeps_is_named_at_every_tenth(observe):
    rising = [{"reserved": int(1000 * MIB * 1.02**n)} for n in range(30)]
    assert observe(rising)[CREEP] in (4, 5)


def test_the_first_evaluation_of_a_resumed_session_is_part_of_its_baseline(observe):
    before, after = [{"reserved": 1000 * MIB}] * 10, [{"reserved": 1500 * MIB, "evaluations": 1}] * 10
    assert observe([*before, *after]) == {}
    assert observe([*before, *after, {"reserved": 1700 * MIB}])[CREEP] == 1
    assert observe([*before, {"reserved": 1200 * MIB}, *after])[CREEP] == 1


def test_an_evaluation_whose_memory_went_to_cuda_graphs_is_part_of_the_baseline(observe):
    """The one at step 0 came before the graphs, which keep its memory: the next one takes as much again."""
    before = [{"reserved": 1000 * MIB, "evaluations": 1}] * 10
    after = [{"reserved": 1500 * MIB, "evaluations": 2}] * 10
    assert observe([*before, *after]) == {}
    assert observe([*before, *after, {"reserved": 1700 * MIB, "evaluations": 3}])[CREEP] == 1


def test_an_evaluation_does_not_excuse_memory_that_rises_at_the_next_one(observe):
    rising = [{"reserved": (1000 + 200 * n) * MIB, "evaluations": 1} for n in range(4)]
    assert observe([{"reserved": 1000 * MIB}] * 5 + rising)[CREEP] >= 2


def test_retries_are_named_when_they_come(observe):
    lines = [{"retries": count} for count in (0, 0, 2, 2, 2, 3)]
    assert observe(lines) == {RETRIES: 2}


def test_a_gradient_of_zero_is_named_each_time(observe):
    assert observe([{"norm": norm} for norm in (1.0, 0.0, 0.0, 0.5)]) == {NO_GRADIENT: 2}


def test_the_heartbeat_counts_and_the_log_says(make_run, run, beats, monkeypatch, caplog):
    run_dir = make_run(optimizer={"lr": 1e-9}, trainer={"max_steps": 6, "eval_steps": 0})
    from neobert.parallel import World

    monkeypatch.setattr(World, "gradient_norm", lambda self, module: torch.zeros(()))
    run(run_dir)
    assert beats(run_dir)[-1]["warnings"] == {NO_GRADIENT: 2}
    assert "step 3: the gradient norm is 0" in caplog.text


def test_a_killed_and_resumed_run_has_the_warnings_of_a_run_from_step_0(make_run, run, beats, monkeypatch):
    """An evaluation needs half as much memory again, which the allocator keeps."""
    reserved, evaluate = [1000 * MIB], session.evaluate

    def evaluate_in_more_memory(trainer):
        reserved[0] = 1500 * MIB
        return evaluate(trainer)

    monkeypatch.setattr(session, "evaluate", evaluate_in_more_memory)
    monkeypatch.setattr(health, "gpu_bytes", lambda _: (None, reserved[0], None))
    run_dir = make_run(trainer={"max_steps": 16, "eval_steps": 12, "save_steps": 5, "logging_steps": 1})
    with killed_before(7):
        run(run_dir)
    reserved[0] = 1000 * MIB
    run(run_dir)
    assert beats(run_dir)[-1]["step"] == 16
    assert CREEP not in beats(run_dir)[-1]["warnings"]
