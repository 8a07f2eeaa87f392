"""What results of trials become: ratios, differences, verdicts and their intervals."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence

import peer_trainer
import pytest
import step_clock
import time_to_loss
import trials

SEEDS = len(trials.SEEDS)


@pytest.fixture
def chosen(tmp_path):
    return argparse.Namespace(
        work=tmp_path / "work",
        results=tmp_path,
        output=tmp_path / "out",
        size="tiny",
        steps=[20, 10],
        kernels=trials.DEFAULT_KERNELS,
        optimizers=["adamw"],
        peer_steps=30,
        tuning_steps=8,
    )


def keep(chosen, trial: trials.Trial, losses: Sequence[float | None], *, seconds=10.0, tokens=100, **more):
    """Write finished runs of a trial."""
    lines = [
        {"loss": loss, "test_loss": loss, "seconds": seconds, "tokens": tokens, **more} for loss in losses
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    trials.result_path(chosen.results, trial.name).write_text(text)


def keep_tuning(chosen, *losses: float | None, optimizer="adamw") -> None:
    keep(chosen, time_to_loss.tuning(chosen, optimizer), losses, kernels={"attention": {"cudnn": {}}})


def keep_peer(chosen, losses: Sequence[float], seconds=100.0, optimizer="adamw") -> None:
    keep(chosen, time_to_loss.best(chosen, optimizer), losses, seconds=seconds)


def keep_ours(chosen, steps: int, losses: Sequence[float], seconds: float) -> None:
    keep(chosen, time_to_loss.own(chosen)[steps], losses, seconds=seconds)


TUNED = (2.9, 2.5, 2.6, 2.7, None, 2.8)


def test_an_interval_is_students_of_three():
    low, high = trials.interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3)))
    with pytest.raises(ValueError, match="2 values"):
        trials.interval([1.0, 2.0])


def test_a_ratio_is_of_geometric_means():
    found = trials.ratio([1.0, 2.0, 4.0], [2.0, 2.0, 2.0])
    assert found["mean"] == pytest.approx(1.0)
    assert found["interval"][0] * found["interval"][1] == pytest.approx(1.0)


def test_a_summary_needs_all_seeds_and_no_divergence():
    run = {"loss": 2.0, "seconds": 3.0, "tokens": 4}
    assert trials.summary([run] * 2) is None
    assert trials.summary([run, run, {"error": "NaN"}]) is None
    assert trials.summary([run, run, run | {"loss": math.nan}]) is None
    assert trials.summary([run] * 3)["loss_interval"] == [2.0, 2.0]


def test_the_time_at_equal_loss_is_interpolated_and_carries_the_noise_of_losses(chosen):
    keep_tuning(chosen, *TUNED)
    keep_peer(chosen, [2.5] * SEEDS)
    keep_ours(chosen, 10, [2.6] * SEEDS, seconds=10)
    assert time_to_loss.judge(chosen)["against"]["adamw"]["time"] is None, "one number of steps has no slope"
    keep_ours(chosen, 20, [2.4] * SEEDS, seconds=40)
    found = time_to_loss.judge(chosen)["against"]["adamw"]["time"]
    assert (found["mean"], found["is_inside"]) == (pytest.approx(0.2), True)
    assert found["interval"] == pytest.approx([0.2, 0.2])
    keep_peer(chosen, [2.45, 2.5, 2.55])
    low, high = time_to_loss.judge(chosen)["against"]["adamw"]["time"]["interval"]
    assert low < 0.19
    assert high > 0.21


def test_a_peer_that_ours_does_not_reach_is_told(chosen):
    keep_tuning(chosen, *TUNED)
    keep_peer(chosen, [2.3] * SEEDS)
    keep_ours(chosen, 10, [2.6] * SEEDS, seconds=10)
    keep_ours(chosen, 20, [2.4] * SEEDS, seconds=40)
    assert time_to_loss.judge(chosen)["against"]["adamw"]["time"]["is_inside"] is False


def test_the_peer_runs_at_its_best_setting_once_all_have_run(chosen):
    keep_tuning(chosen, *TUNED[:-1])
    assert time_to_loss.best(chosen, "adamw") is None
    keep_tuning(chosen, *TUNED)
    trial = time_to_loss.best(chosen, "adamw")
    assert [recipe["seed"] for recipe in trial.recipes] == list(trials.SEEDS)
    assert {(recipe["lr"], recipe["weight_decay"]) for recipe in trial.recipes} == {(1e-3, 0.01)}
    left = [each for each in time_to_loss.wanted(chosen) if not trials.runs_of(chosen.results, each.name)]
    assert left == [*time_to_loss.own(chosen).values(), trial]


def test_both_optimizers_get_five_rates_and_another_weight_decay(chosen):
    for optimizer in time_to_loss.RATES:
        recipes = time_to_loss.recipes_of(optimizer, 8)
        assert len({recipe["lr"] for recipe in recipes}) == 5
        assert len({time_to_loss.title_of(recipe) for recipe in recipes}) == 6
    muon = time_to_loss.tuning(chosen, "muon").recipes
    assert all(recipe["adam_lr"] == recipe["lr"] / 2 for recipe in muon)
    assert all(recipe.keys() <= peer_trainer.BASE.keys() for recipe in muon)


def test_the_figures_are_against_the_better_optimizer_and_name_the_kernels(chosen):
    chosen.optimizers = ["adamw", "muon"]
    for optimizer, loss, seconds in (("adamw", 2.5, 100.0), ("muon", 2.45, 50.0)):
        keep_tuning(chosen, *TUNED, optimizer=optimizer)
        keep_peer(chosen, [loss] * SEEDS, seconds=seconds, optimizer=optimizer)
    keep_ours(chosen, 10, [2.6] * SEEDS, seconds=10)
    keep_ours(chosen, 20, [2.4] * SEEDS, seconds=40)
    report = time_to_loss.report(chosen)
    time = json.loads((chosen.output / "time-to-loss.json").read_text())
    tokens = json.loads((chosen.output / "loss-at-equal-tokens.json").read_text())
    assert time["value"] == pytest.approx(20 * math.sqrt(2) / 50, abs=1e-4)
    assert (tokens["value"], "is_complete" in tokens) == (-0.05, False)
    assert time["detail"]["peer_kernels"]["muon"] == {"attention": {"cudnn": {}}}
    assert time["detail"]["against"]["adamw"]["tuning"]["adamw 0.004, weight decay 0.01"] == "diverged"
    assert "peer, muon: best muon 0.002, weight decay 0.5" in report


def test_our_recipe_has_short_pieces_in_the_first_quarter(chosen):
    chosen.kernels = "triton"
    command = time_to_loss.own(chosen)[20].command
    config = json.loads(command[command.index("--config") + 1])
    pieces = {"sequence_length_warmup_steps": 5, "sequence_length_warmup_length": 64}
    assert config["trainer"] == trials.RECIPE["trainer"] | pieces
    assert config["model"]["kernel_backend"] == "triton"


def test_a_figure_without_all_runs_is_not_complete(chosen):
    keep_tuning(chosen, *TUNED)
    keep_ours(chosen, 20, [2.4] * SEEDS, seconds=40)
    time_to_loss.report(chosen)
    written = json.loads((chosen.output / "time-to-loss.json").read_text())
    assert (written["value"], written["is_complete"]) == (None, False)
    assert written["detail"]["ours"]["20"]["loss"] == 2.4


def test_more_tokens_than_the_peer_are_no_comparison(chosen):
    keep_tuning(chosen, *TUNED)
    keep_peer(chosen, [2.5] * SEEDS)
    keep(chosen, time_to_loss.own(chosen)[20], [2.0] * SEEDS, tokens=101)
    assert time_to_loss.judge(chosen)["against"]["adamw"]["equal_tokens"] is None


def test_the_clock_leaves_the_first_steps_out(monkeypatch):
    now = iter([100.0, 112.0])
    monkeypatch.setattr(step_clock, "_now", lambda: next(now))
    clock = step_clock.StepClock(10)
    for step in range(1, 11):
        clock.ended(step)
    assert clock.seconds == pytest.approx(20.0), "12 s for the last six steps"
    with pytest.raises(ValueError, match="4 steps cannot be timed"):
        step_clock.StepClock(4)
