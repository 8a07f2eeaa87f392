"""F21: a loss that is no number, or leaps: all ranks stop before the optimizer, and nothing bad is saved."""

import json

import pytest
from safetensors.torch import load_file

from launcher.rundir.records import read_json
from neobert.runfiles.checkpoint.folders import checkpoint_steps, find_checkpoint

pytestmark = pytest.mark.e2e


def test_what_fails_twice_at_the_same_step_is_not_begun_a_third_time(launch):
    run_dir, ending = launch(*[{"kind": "nan", "step": 8}] * 5)
    assert (ending.status, ending.exit_code, ending.restarts) == ("failed", 93, 1)
    assert "not finite" in ending.message
    assert "not retrying" in ending.message
    assert find_checkpoint(run_dir / "checkpoints", "auto")[1].step == 6


def test_a_loss_that_leaps_once_costs_the_steps_since_the_last_save(launch, exact):
    run_dir, ending = launch({"kind": "spike", "step": 8})
    assert (ending.status, ending.exit_code, ending.restarts) == ("finished", 0, 1)
    (restart,) = read_json(run_dir / "manifest.json")["restarts"]
    assert "loss spike at step 8" in restart["why"]
    assert restart["from"] == "checkpoint 6"
    assert [row["step"] for row in exact(run_dir)] == list(range(13))


def test_a_kernel_that_falls_back_saves_its_step_and_is_not_restarted(launch):
    run_dir, ending = launch({"kind": "fallback", "step": 4})
    assert (ending.status, ending.exit_code, ending.step, ending.restarts) == ("failed", 4, 6, 0)
    assert "kernel_fallbacks grew to 3" in ending.message
    assert find_checkpoint(run_dir / "checkpoints", "auto")[1].step == 6
    assert read_json(run_dir / "metrics.json")["step"] == 6


def test_what_one_rank_of_two_computes_wrongly_stops_both_at_the_same_step(launch):
    run_dir, ending = launch({"kind": "nan", "step": 8, "rank": 1}, ranks=2, max_restarts=0)
    assert (ending.status, ending.exit_code, ending.step) == ("failed", 4, 7)
    assert "step 8 is not finite" in ending.message
    for rank in range(2):
        report = json.loads((run_dir / f"nonfinite_rank{rank}.json").read_text(encoding="utf-8"))
        assert report["step"] == 8
        assert all(batch["sample_ids"] for batch in report["microbatches"])
    assert checkpoint_steps(run_dir / "checkpoints") == [3, 6]
    folder, _ = find_checkpoint(run_dir / "checkpoints", "auto")
    assert all(weight.isfinite().all() for weight in load_file(folder / "model.safetensors").values())
