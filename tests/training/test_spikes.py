"""Loss spikes: detected on the device, reported, and stopped before the optimizer."""

import json

import pytest
import torch
from safetensors.torch import load_file

from neobert.config.schema import GuardConfig
from neobert.runfiles.checkpoint import folders
from neobert.runfiles.checkpoint.state import read_state
from neobert.training.guards.loss_guard import FiniteGuard, LossSpikeDetector
from tests.killed_run import change_losses
from tests.refusals import refusal_of

CPU = torch.device("cpu")


def judge_all(losses, factor=10.0):
    spikes = LossSpikeDetector(CPU, factor)
    return [bool(spikes.judge(step, torch.tensor(loss))) for step, loss in enumerate(losses, 1)], spikes


@pytest.mark.parametrize(
    ("losses", "factor", "expected"),
    [
        ([9.0, 8.0, 7.0, 90.0, 6.0], 10.0, [3]),
        ([9.0, 8.0, 7.0, 69.0, 6.0], 10.0, []),
        ([9.0, 800.0, 900.0, 8.0], 10.0, [1, 2]),
        ([1000.0, 1.0, 1.0], 10.0, []),
        ([9.0, float("nan"), float("inf"), 9.0, 95.0], 10.0, [4]),
        ([9.0, 900.0, 9.0], None, []),
        ([0.0, 9.0, 8.0, 95.0], 10.0, [3]),
        ([9.0, *[0.0] * 60, 9.0], 10.0, []),
        ([0.001, 0.001, 0.3, 0.99, 1.01], 10.0, [4]),
    ],
)
def test_a_leap_is_a_multiple_of_the_mean_before_it(losses, factor, expected):
    found, _ = judge_all(losses, factor)
    assert [place for place, is_spike in enumerate(found) if is_spike] == expected


def test_the_first_leap_is_told_once_with_what_was_before():
    _, spikes = judge_all([5.0, 5.0, 60.0, 70.0])
    assert spikes.take() == ((3, 60.0, 5.0), 5.0)
    assert spikes.take() == (None, 5.0)


def test_a_mean_of_nothing_that_an_earlier_session_left_is_none():
    spikes = LossSpikeDetector(CPU, 10.0)
    spikes.resume(0.0)
    assert not bool(spikes.judge(1, torch.tensor(9.0)))
    assert spikes.take() == (None, 9.0)


def test_on_a_gpu_the_updates_are_skipped_until_the_host_looks(tmp_path):
    guard = FiniteGuard(CPU, tmp_path / "nonfinite.json", 5, limits=GuardConfig())
    guard._is_on_gpu, guard._recent = True, type(guard._recent)(maxlen=5)
    skipped = []
    for step, loss in enumerate((5.0, 5.0, 60.0, 5.0), 1):
        guard.remember(step, [{"sample_ids": torch.tensor([step])}])
        guard.judge(step, torch.tensor(loss), torch.tensor(1.0))
        skipped.append(bool(guard.verdict))
    assert skipped == [False, False, True, True]
    assert refusal_of(guard.check, "SPK001", "loss spike at step 3: loss 60, running mean 5").exit_code == 4
    written = json.loads((tmp_path / "loss_spike.json").read_text())
    assert (written["step"], written["microbatches"]) == (3, [{"sample_ids": [3]}])
    assert not (tmp_path / "nonfinite.json").exists()


def test_a_checkpoint_between_logging_steps_has_the_mean_of_its_step(make_run, run, monkeypatch):
    """The device-side path: the host reads the mean at logging steps, and before it saves."""
    create, means = FiniteGuard.__init__, []

    def on_gpu(guard, *args, **options):
        create(guard, *args, **options)
        guard._is_on_gpu = is_on_gpu

    monkeypatch.setattr(FiniteGuard, "__init__", on_gpu)
    for is_on_gpu in (False, True):
        run_dir = make_run(f"run{is_on_gpu}", trainer={"max_steps": 6, "save_steps": 5, "logging_steps": 4})
        assert run(run_dir) == 0
        means.append(read_state(run_dir / "checkpoints" / "5", 5)["mean_loss"])
    assert means[0] is not None
    assert means[0] == means[1]


@pytest.fixture
def leaping(monkeypatch):
    """Multiply the loss of step 7."""
    change_losses(monkeypatch, (12, 13), lambda loss: loss * 12.0)


@pytest.mark.usefixtures("leaping")
def test_a_leap_stops_before_the_optimizer_and_the_last_checkpoint_is_good(
    make_run, run, outcome, uninterrupted, exact
):
    run_dir = make_run()
    refusal_of(run, "SPK001", "loss spike", run_dir)
    assert (outcome(run_dir)["step"], outcome(run_dir)["exit_code"]) == (6, 4)
    assert folders.checkpoint_steps(run_dir / "checkpoints") == [5]
    report = json.loads((run_dir / "loss_spike_rank0.json").read_text(encoding="utf-8"))
    assert report["step"] == 7
    assert report["loss"] > 10 * report["mean_loss"]
    assert [bool(batch["sample_ids"]) for batch in report["microbatches"]] == [True, True]
    assert run(run_dir) == 0
    assert exact(run_dir) == uninterrupted


def test_a_leap_right_behind_a_checkpoint_stops_every_session_that_meets_it(make_run, run, monkeypatch):
    """Else the run would be begun again, take the leap for the mean, and train on it."""
    real, judge = FiniteGuard.judge, []

    def leap(guard, step, loss, *rest):
        judge.append(step)
        return real(guard, step, loss * 12.0 if step == 6 else loss, *rest)

    monkeypatch.setattr(FiniteGuard, "judge", leap)
    run_dir = make_run()
    seen = []
    for _ in range(2):
        refusal_of(run, "SPK001", "loss spike at step 6", run_dir)
        seen.append((run_dir / "loss_spike_rank0.json").read_text(encoding="utf-8"))
    assert judge == [1, 2, 3, 4, 5, 6, 6]
    assert seen[0] == seen[1]
    assert folders.checkpoint_steps(run_dir / "checkpoints") == [5]


@pytest.mark.usefixtures("leaping")
def test_a_leap_that_is_warned_of_is_written_down_and_trained_on(make_run, run, caplog):
    run_dir = make_run(guard={"on_loss_spike": "warn"})
    assert run(run_dir) == 0
    assert json.loads((run_dir / "loss_spike_rank0.json").read_text(encoding="utf-8"))["step"] == 7
    assert "step 7: loss spike to" in caplog.text
    weights = load_file(run_dir / "checkpoints" / "12" / "model.safetensors")
    assert all(weight.isfinite().all() for weight in weights.values())


@pytest.mark.usefixtures("leaping")
def test_without_a_factor_nothing_is_a_leap(make_run, run):
    run_dir = make_run(guard={"loss_spike_factor": None})
    assert run(run_dir) == 0
    assert not list(run_dir.glob("loss_spike*"))
