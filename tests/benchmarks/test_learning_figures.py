"""What results of trials become: ratios, differences, verdicts and their intervals."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence

import peer_trainer
import pytest
import recipe_ablations
import step_clock
import time_to_loss
import trials

SEEDS = len(trials.SEEDS)
MASKED = "20 % masked"


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
        ablation_steps=16,
        keys=None,
        arms=None,
        name="recipe-ablations",
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
    assert config["trainer"] == {
        "cuda_graphs": True, "sequence_length_warmup_steps": 5, "sequence_length_warmup_length": 64
    }  # fmt: skip
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


def keep_arms(chosen, **changes: float) -> None:
    """Write all runs of the ablations: the longer run gains 0.1, arms named here change by so much."""
    titles = recipe_ablations.without_own_step(chosen)
    for seed in trials.SEEDS:
        noise = 0.001 * seed
        losses = [3.0 + noise, 2.9 + noise, *(3.0 + noise + changes.get(title, 0.0) for title in titles)]
        lines = [{"loss": loss, "seconds": 10.0, "tokens": 1} for loss in losses]
        path = trials.result_path(chosen.results, recipe_ablations.shared(chosen, seed).name)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def rows_of(chosen) -> dict[str, dict]:
    return {row["arm"]: row for row in recipe_ablations.judge(chosen)}


def test_verdicts_are_about_the_key(chosen):
    changes = {"init: published": 0.2, "cosine decay": -0.2, "muon_split: heads": 0.2, "sqrt decay": -0.2}
    keep_arms(chosen, **changes)
    found = rows_of(chosen)
    assert {title: found[title]["verdict"] for title in changes} == {
        "init: published": "kept",
        "cosine decay": "lost",
        "muon_split: heads": "lost",
        "sqrt decay": "kept",
    }
    assert found["weight_decay: 0.1"]["verdict"] == "not shown"
    assert found["init: published"]["change"]["interval"] == pytest.approx([0.2, 0.2])


def test_a_change_of_loss_becomes_one_of_time_by_the_longer_run(chosen):
    keep_arms(chosen, **{"init: published": 0.1})
    assert rows_of(chosen)["init: published"]["time"]["mean"] == pytest.approx(recipe_ablations.LONGER)


def test_seconds_count_only_where_the_steps_do_other_work(chosen):
    keep_arms(chosen)
    for seed in trials.SEEDS:
        path = trials.result_path(chosen.results, recipe_ablations.shared(chosen, seed).name)
        base, longer, *arms = path.read_text().splitlines(keepends=True)
        slower = [line.replace('"seconds": 10.0', '"seconds": 12.0') for line in arms]
        path.write_text("".join([base, longer, *slower]))
    found = rows_of(chosen)
    assert found["muon_split: heads"]["time"]["mean"] == pytest.approx(1.2)
    assert found["muon_split: heads"]["verdict"] == "lost"
    assert found["cosine decay"]["time"]["mean"] == pytest.approx(1.0)


def test_some_keys_at_another_size_have_a_file_of_their_own(chosen):
    chosen.keys, chosen.size = ["optimizer.muon_split: heads", "datacollator.mlm_probability"], "245M"
    keep_arms(chosen, **{"muon_split: heads": -0.1})
    keep(chosen, recipe_ablations.alone(chosen, MASKED, recipe_ablations.ARMS[MASKED]), [3.1] * SEEDS)
    assert {title: row["verdict"] for title, row in rows_of(chosen).items()} == {
        "muon_split: heads": "kept",
        MASKED: "kept",
    }
    recipe_ablations.report(chosen)
    written = json.loads((chosen.output / "recipe-ablations-245M.json").read_text())
    assert ("is_complete" in written, written["detail"]["rows"]) == (False, trials.ROWS["245M"])


def test_an_arm_that_diverged_has_a_verdict(chosen):
    keep_arms(chosen)
    z_loss = recipe_ablations.ARMS["z_loss: 1e-4"]
    keep(chosen, recipe_ablations.alone(chosen, "z_loss: 1e-4", z_loss), [None, 3.0, 3.0])
    row = rows_of(chosen)["z_loss: 1e-4"]
    assert (row["verdict"], row["diverged"]) == ("lost", 1)
    recipe_ablations.report(chosen)
    written = json.loads((chosen.output / "recipe-ablations-tiny.json").read_text())
    assert written["is_complete"] is False


def test_an_unfinished_seed_leaves_its_arm_out(chosen):
    keep_arms(chosen)
    path = trials.result_path(chosen.results, recipe_ablations.shared(chosen, 2).name)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    found = rows_of(chosen)
    assert "every chosen token becomes [MASK]" not in found
    assert "cosine decay" in found


def test_arms_that_share_a_step_have_the_same_options(chosen):
    base = trials.ours(chosen.work, "base", [{"steps": 16}], size="tiny")
    assert recipe_ablations.shared(chosen, 0).command == base.command
    for title, arm in recipe_ablations.arms(chosen).items():
        if arm.config:
            assert recipe_ablations.alone(chosen, title, arm).command != base.command


def test_the_batch_size_warm_up_reads_as_many_microbatches(chosen):
    chosen.ablation_steps, chosen.size = 800, "53M"
    arm = recipe_ablations.arms(chosen)[recipe_ablations.BATCH_WARMUP]
    # 200 steps of one microbatch of half the rows: 100 steps more than 800 of two.
    assert arm.recipe["steps"] == 900
    assert arm.config["trainer"]["per_device_train_batch_size"] == 32


def test_the_clock_leaves_the_first_steps_out(monkeypatch):
    now = iter([100.0, 112.0])
    monkeypatch.setattr(step_clock, "_now", lambda: next(now))
    clock = step_clock.StepClock(10)
    for step in range(1, 11):
        clock.ended(step)
    assert clock.seconds == pytest.approx(20.0), "12 s for the last six steps"
    with pytest.raises(ValueError, match="4 steps cannot be timed"):
        step_clock.StepClock(4)
