"""F20: a stopped rank, a held interpreter, data that never come: seen from outside, and ended."""

import pytest

from launcher.process.process_tree import stop_orphaned_ranks
from launcher.rundir.records import read_json
from neobert.runfiles.checkpoint.folders import find_checkpoint

pytestmark = pytest.mark.e2e


def restarts(run_dir):
    return read_json(run_dir / "manifest.json")["restarts"]


def test_a_stopped_rank_and_a_killed_one_are_named_and_the_run_goes_on(launch, exact):
    run_dir, ending = launch(
        {"kind": "stopped", "step": 8, "rank": 1}, {"kind": "killed", "step": 11, "rank": 1}, ranks=2
    )
    assert (ending.status, ending.exit_code, ending.restarts) == ("finished", 0, 2)
    stalled, lost = restarts(run_dir)
    assert stalled["why"].startswith("rank 1 made no progress after step 7 for")
    assert "wrote no heartbeats" in stalled["why"]
    assert lost["why"].startswith("rank 1 was killed by SIGKILL")
    # Woken and asked to end, the stopped rank lets both save the step that it was in, if there is time.
    assert stalled["from"] in ("checkpoint 6", "checkpoint 8")
    assert lost["from"] == "checkpoint 9"
    assert [row["step"] for row in exact(run_dir)] == list(range(13))
    for rank in range(2):
        stacks = (run_dir / "logs" / f"rank_{rank}.stacks").read_text(encoding="utf-8")
        assert "in fit" in stacks  # where in it depends on who waits for whom
        assert ("in faulty" in stacks) == (rank == 1)


def test_ranks_outlive_no_torchrun_and_the_run_goes_on(launch, exact):
    many = {"trainer": {"max_steps": 100}}  # steps of milliseconds: a torchrun that dies takes some of them
    run_dir, ending = launch({"kind": "agent", "step": 8, "rank": 1}, ranks=2, grace_s=30.0, sections=many)
    assert (ending.status, ending.exit_code, ending.restarts) == ("finished", 0, 1)
    (lost,) = restarts(run_dir)
    assert lost["why"].startswith("torchrun was killed by SIGKILL")
    # Request to end, both save the step on which they agree.
    assert 7 <= int(lost["from"].removeprefix("checkpoint ")) < 100
    assert [row["step"] for row in exact(run_dir)] == list(range(101))
    assert stop_orphaned_ranks(run_dir / "resolved.json", 0.0) == (0, 0)


def test_held_interpreters_and_absent_data_are_ended(launch, exact):
    run_dir, ending = launch({"kind": "interpreter", "step": 8}, {"kind": "data", "step": 11})
    assert (ending.status, ending.exit_code, ending.restarts) == ("finished", 0, 2)
    held, waiting = restarts(run_dir)
    assert "made no progress after step 7 for" in held["why"]
    assert "in data_wait after step 10" in waiting["why"]
    assert [row["step"] for row in exact(run_dir)] == list(range(13))
    stacks = (run_dir / "logs" / "rank_0.stacks").read_text(encoding="utf-8")
    assert "hold_the_interpreter" in stacks
    assert "in fetch_batches" in stacks or "in faulty" in stacks
    assert find_checkpoint(run_dir / "checkpoints", "auto")[1].step == 12
    assert read_json(run_dir / "outcome.json")["restarts"] == 2


def test_without_a_fault_the_same_limits_end_nothing(launch):
    run_dir, ending = launch(is_warm=False)  # with the imports of a process of its own
    assert (ending.status, ending.exit_code, ending.restarts) == ("finished", 0, 0)
    assert (run_dir / "logs" / "rank_0.stacks").read_bytes() == b""
