"""What results of trials become: ratios, differences, verdicts and their intervals."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence

import loss_at_equal_tokens
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
        steps=[20],
        settings=list(time_to_loss.SETTINGS),
        peer_steps=30,
        tokens=[10_000, 20_000],
        rate=1e-3,
        ablation_steps=16,
        keys=None,
        arms=None,
        name="recipe-ablations",
    )


def keep(chosen, trial: trials.Trial, losses: Sequence[float | None], *, seconds=10.0, tokens=100, **more):
    """Write finished runs of a trial."""
    lines = [{"loss": loss, "seconds": seconds, "tokens": tokens, **more} for loss in losses]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    trials.result_path(chosen.results, trial.name).write_text(text)


def keep_peer(chosen, setting: time_to_loss.Setting, losses: Sequence[float], seconds=100.0) -> None:
    for seed, loss in enumerate(losses):
        keep(chosen, time_to_loss.of_peer(chosen, setting, seed), [loss], seconds=seconds)


def keep_screen(chosen, *losses: float) -> None:
    """Write three seeds of the first setting, and one of each other."""
    keep_peer(chosen, time_to_loss.SETTINGS[0], [losses[0]] * SEEDS)
    for setting, loss in zip(time_to_loss.SETTINGS[1:], losses[1:], strict=True):
        keep_peer(chosen, setting, [loss])


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


def test_the_ratio_is_that_of_the_fewest_steps_that_reach_the_peer(chosen):
    chosen.steps = [30, 20, 10]
    keep_screen(chosen, 2.5, 2.6, 2.7, 2.8)
    for steps, loss in ((10, 2.6), (20, 2.5), (30, 2.4)):
        keep(chosen, trials.seeds_of(chosen.work, steps, "tiny"), [loss] * SEEDS, seconds=steps)
    found = time_to_loss.judge(chosen)
    assert found["ratio"]["mean"] == pytest.approx(0.2)
    assert found["loss_differences"][10]["mean"] == pytest.approx(0.1)


def test_no_ratio_before_the_peers_loss_is_reached(chosen):
    keep_screen(chosen, 2.5, 2.6, 2.7, 2.8)
    keep(chosen, trials.seeds_of(chosen.work, 20, "tiny"), [2.51] * SEEDS)
    assert time_to_loss.judge(chosen)["ratio"] is None
    time_to_loss.report(chosen)
    written = json.loads((chosen.output / "time-to-loss.json").read_text())
    assert (written["value"], "is_complete" in written) == (None, False)
    assert written["detail"]["ours"]["20"]["loss"] == 2.51


def test_the_time_at_equal_loss_is_interpolated_and_carries_the_noise_of_losses(chosen):
    chosen.steps = [10, 20]
    keep_screen(chosen, 2.5, 2.6, 2.7, 2.8)
    keep(chosen, trials.seeds_of(chosen.work, 10, "tiny"), [2.6] * SEEDS, seconds=10)
    keep(chosen, trials.seeds_of(chosen.work, 20, "tiny"), [2.4, 2.4, 2.4], seconds=40)
    at_equal = time_to_loss.judge(chosen)["at_equal_loss"]
    assert at_equal["mean"] == pytest.approx(0.2)
    assert at_equal["interval"] == pytest.approx([0.2, 0.2])
    keep_peer(chosen, time_to_loss.SETTINGS[0], [2.45, 2.5, 2.55])
    low, high = time_to_loss.judge(chosen)["at_equal_loss"]["interval"]
    assert low < 0.19
    assert high > 0.21


def test_the_peer_is_judged_at_its_best_setting(chosen):
    keep_screen(chosen, 2.5, 2.4, 2.7, math.nan)
    keep(chosen, trials.seeds_of(chosen.work, 20, "tiny"), [2.45] * SEEDS)
    best = time_to_loss.SETTINGS[1]
    left = [trial for trial in time_to_loss.wanted(chosen) if not trials.runs_of(chosen.results, trial.name)]
    assert left == [time_to_loss.of_peer(chosen, best, seed) for seed in (1, 2)]
    assert time_to_loss.judge(chosen)["ratio"] is None
    keep_peer(chosen, best, [2.4] * SEEDS)
    assert time_to_loss.judge(chosen)["peer_setting"] == best.title
    assert time_to_loss.judge(chosen)["ratio"] is None, "2.45 does not reach 2.4"


def test_only_the_chosen_settings_run(chosen):
    chosen.settings = [time_to_loss.setting_of("1e-3:0.01"), time_to_loss.setting_of("2e-3:0.01")]
    titles = {trial.name.split("-seed")[0] for trial in time_to_loss.wanted(chosen) if "peer" in trial.name}
    assert titles == {"peer-0.001-decay-0.01-30", "peer-0.002-decay-0.01-30"}


def test_a_figure_without_the_whole_screen_is_not_complete(chosen):
    keep_peer(chosen, time_to_loss.SETTINGS[0], [2.5] * SEEDS)
    keep(chosen, trials.seeds_of(chosen.work, 20, "tiny"), [2.4] * SEEDS)
    time_to_loss.report(chosen)
    written = json.loads((chosen.output / "time-to-loss.json").read_text())
    assert (written["value"], written["is_complete"]) == (0.1, False)


def test_the_figure_of_equal_tokens_is_the_largest_difference(chosen):
    for tokens, change in ((10_000, -0.1), (20_000, -0.2)):
        keep(chosen, loss_at_equal_tokens.own(chosen, tokens), [3 + change] * SEEDS, tokens=tokens)
        for seed in trials.SEEDS:
            keep(chosen, loss_at_equal_tokens.of_peer(chosen, tokens, seed), [3.0], tokens=tokens)
    loss_at_equal_tokens.report(chosen)
    written = json.loads((chosen.output / "loss-at-equal-tokens.json").read_text())
    assert written["value"] == -0.1
    assert written["detail"]["by_tokens"]["20000"]["difference"]["interval"] == pytest.approx([-0.2, -0.2])


def test_more_tokens_than_the_peer_are_no_comparison(chosen):
    tokens = chosen.tokens[0]
    keep(chosen, loss_at_equal_tokens.own(chosen, tokens), [2.0] * SEEDS, tokens=tokens + 1)
    for seed in trials.SEEDS:
        keep(chosen, loss_at_equal_tokens.of_peer(chosen, tokens, seed), [3.0], tokens=tokens)
    assert loss_at_equal_tokens.judge(chosen)[tokens]["difference"] is None


def test_both_comparisons_share_the_runs_at_a_hundred_million_tokens(chosen):
    chosen.size = "53M"
    assert loss_at_equal_tokens.own(chosen, 100_000_000) == trials.seeds_of(
        chosen.work, time_to_loss.STEPS[0], "53M"
    )


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
    base = trials.seeds_of(chosen.work, 16, "tiny")
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
