"""Schedules of the recipe: killed in the middle of each and resumed, a run is the uninterrupted one."""

from itertools import pairwise
from typing import Any

import pytest

from neobert.config.schedules import microbatches_at
from neobert.data.batches.microbatch import Microbatch
from neobert.training.loop import steps
from tests.killed_run import killed_before

RECIPES: dict[str, dict[str, Any]] = {
    "a decay": {
        "model": {"init": "scaled"},
        "trainer": {"z_loss": 1e-3},
        "scheduler": {"name": "1-sqrt", "decay_steps": 6, "final_lr_ratio": 0.0},
        "datacollator": {"mlm_probability": 0.5, "mlm_probability_eval": 0.15},
    },
    "a growing batch": {
        "trainer": {"gradient_accumulation_steps": 6, "batch_size_warmup_steps": 9},
        "optimizer": {"name": "muon", "muon_split": "heads"},
    },
    "a warm-up": {
        "trainer": {
            "z_loss": 1e-3,
            "sequence_length_warmup_steps": 9,
            "sequence_length_warmup_length": 8,
        },
        "scheduler": {"name": "sqrt", "warmup_steps": 9, "final_lr_ratio": 0.0},
        "optimizer": {"name": "muon", "muon_split": "projections"},
    },
}


def with_cadence(name: str) -> dict[str, Any]:
    """Return a recipe that saves at every third step and logs every step."""
    return RECIPES[name] | {"trainer": RECIPES[name]["trainer"] | {"save_steps": 3, "logging_steps": 1}}


@pytest.mark.parametrize("name", RECIPES)
def test_a_kill_in_the_middle_of_a_schedule_changes_nothing(name, killed_run, exact):
    # Saved at 6, in the middle of decay, warm-up or growth.
    whole = killed_run(8, **with_cadence(name))
    losses = [line["train/loss"] for line in exact(whole) if "train/loss" in line]
    assert len(set(losses)) == 12


def test_a_schedule_that_begins_again_at_a_resume_is_seen(make_run, run, exact, monkeypatch):
    """The negative control: the batch of step 0 after the resume."""
    recipe = with_cadence("a growing batch")
    whole, killed = make_run("whole", **recipe), make_run("killed", **recipe)
    assert run(whole) == 0
    with killed_before(8):
        run(killed)
    monkeypatch.setattr(steps, "microbatches_at", lambda step, trainer: microbatches_at(step - 6, trainer))
    assert run(killed) == 0
    assert exact(killed) != exact(whole)


def test_a_branch_of_the_stable_phase_is_the_run_that_was_planned_that_short(make_run, run, exact):
    """The learning rate of the plateau is the same in both, so the checkpoint is a step of either."""
    cadence = {"save_steps": 3, "logging_steps": 1, "eval_steps": 3}
    stable = make_run("stable", scheduler={"warmup_steps": 2, "decay_steps": 1}, trainer=cadence)
    assert run(stable) == 0
    shorter = {"scheduler": {"name": "sqrt", "warmup_steps": 2, "decay_steps": 3, "final_lr_ratio": 0.0}}
    planned = make_run("planned", trainer={**cadence, "max_steps": 9}, **shorter)
    assert run(planned) == 0
    start = {"resume_from_checkpoint": str(stable / "checkpoints" / "6")}
    branch = make_run("branch", trainer={**cadence, "max_steps": 9, **start}, **shorter)
    assert run(branch) == 0
    assert exact(branch) == [line for line in exact(planned) if line["step"] > 6]


def test_a_growing_batch_reads_more_in_every_stage(make_run, run, metrics):
    growing = make_run(trainer=RECIPES["a growing batch"]["trainer"] | {"logging_steps": 1})
    assert run(growing) == 0
    totals = [line["train/tokens_total"] for line in metrics(growing) if "train/tokens_total" in line]
    tokens = [after - before for before, after in pairwise([0, *totals])]
    for step, microbatches in enumerate([1, 1, 1, 2, 2, 2, 4, 4, 4, 6, 6, 6]):
        assert 0.7 * microbatches < tokens[step] / (4 * 32) <= microbatches


def test_short_pieces_are_the_same_text_until_the_warm_up_ends(make_run, run, metrics, monkeypatch):
    """The first steps see other context and the same tokens; evaluations see whole documents."""
    cut, in_pieces = [], Microbatch.split_segments
    monkeypatch.setattr(Microbatch, "split_segments", lambda *of: cut.append(of[1]) or in_pieces(*of))
    lines = {}
    for steps_in_pieces in (0, 4):
        warmup = {"sequence_length_warmup_steps": steps_in_pieces, "sequence_length_warmup_length": 8}
        single = {"logging_steps": 1, "gradient_accumulation_steps": 1}
        folder = make_run(f"cut-{steps_in_pieces}", trainer=warmup | single)
        assert run(folder) == 0
        lines[steps_in_pieces] = [line for line in metrics(folder) if "train/loss" in line]
    assert cut == [8] * 4
    for whole, pieces in zip(*lines.values(), strict=True):
        assert whole["train/tokens_total"] == pieces["train/tokens_total"]
        assert whole["train/loss"] != pieces["train/loss"]


def test_padded_rows_are_not_cut(make_run, run, metrics):
    losses = []
    for steps_in_pieces in (0, 4):
        warmup = {"sequence_length_warmup_steps": steps_in_pieces, "sequence_length_warmup_length": 8}
        padded = {"datacollator": {"pack_sequences": False}, "trainer": {**warmup, "max_steps": 4}}
        folder = make_run(f"padded-{steps_in_pieces}", **padded)
        assert run(folder) == 0
        losses.append([line["train/loss"] for line in metrics(folder) if "train/loss" in line])
    assert losses[0] == losses[1] != []
