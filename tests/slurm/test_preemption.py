"""A run on two of three nodes that is preempted and loses a node, by a real Slurm."""

import pytest

from neobert.runfiles.checkpoint.folders import checkpoint_steps
from neobert.runfiles.checkpoint.manifest import verify_checkpoint
from tests.slurm.runs import STEPS_OF_A_PREEMPTION, damage_of, launches_of, preempt_at_random, steps_in

pytestmark = pytest.mark.slurm

SEED, PREEMPTIONS = 7, 5
LARGE = ("--model.hidden_size=512", "--model.intermediate_size=1024")
LONG_SYNC_S = 100.0


def test_a_run_survives_preemptions_and_the_loss_of_a_node(cluster, run_file, tmp_path):
    last_step, run_dir = PREEMPTIONS * STEPS_OF_A_PREEMPTION + 60, tmp_path / "run"
    job = cluster.submit(run_file(max_steps=last_step, eval_steps=100), "--nodes", "2")
    moments = preempt_at_random(cluster, job, run_dir, PREEMPTIONS, SEED)
    seen = len(steps_in(run_dir))
    cluster.until(lambda: len(steps_in(run_dir)) > seen, "the run does not continue")
    launches = launches_of(run_dir)
    second = cluster.nodes_of(job)[1]
    with cluster.lost(second):
        cluster.until_restarted(job, PREEMPTIONS)
        cluster.release(job)
        cluster.until(lambda: launches_of(run_dir) > launches, "the job does not continue elsewhere")
    cluster.until_completed(job)
    assert damage_of(run_dir, last_step) == [], moments


def test_a_save_longer_than_the_grace_time_costs_the_steps_since_the_save_before(cluster, run_file, tmp_path):
    """The partition warns a second before it kills; checkpoints of this size take longer at 200 MiB/s."""
    run_dir = tmp_path / "run"
    run = run_file(max_steps=30, eval_steps=0, per_device_train_batch_size=1)
    job = cluster.submit(run, "--partition", "hasty", *LARGE)
    cluster.until(lambda: len(steps_in(run_dir)) > 15, "no step")
    with cluster.slow_disk(fsync=LONG_SYNC_S):
        cluster.preempt(job)
        saved = checkpoint_steps(run_dir / "checkpoints")
        assert saved == [10], saved
        verify_checkpoint(run_dir / "checkpoints" / "10")
    cluster.until_completed(job)
    assert damage_of(run_dir, 30) == []
    (log,) = (tmp_path / "run.submit").glob("*.log")
    before, _, after = log.read_text().partition("resuming from step 10:")
    assert "warn HST005 abrupt-walltime" in before
    assert "SIGTERM: finishing this step, saving a checkpoint" in before
    assert "step 11/30" in after


def test_a_lost_node_that_returns_does_not_change_the_run(cluster, run_file, tmp_path):
    """Its processes are frozen while Slurm starts the job elsewhere, and continue when the run trains."""
    run_dir = tmp_path / "run"
    job = cluster.submit(run_file(max_steps=100, save_steps=5))
    cluster.until(lambda: len(steps_in(run_dir)) > 10, "no step")
    (lost,) = cluster.nodes_of(job)
    with cluster.lost(lost, is_noticed=True) as zombies:
        assert any("neobert.train" in process.cmdline() for process in zombies)
        cluster.until_restarted(job, 0)
        cluster.release(job)
        before = len(steps_in(run_dir))
        cluster.until(lambda: len(steps_in(run_dir)) > before, "the job does not continue elsewhere")
        assert cluster.nodes_of(job) != [lost]
    cluster.until_completed(job)
    assert damage_of(run_dir, 100) == []
    assert "a later launch of this run has taken over" in (run_dir / "logs" / "rank_0.log").read_text()


def test_a_run_that_cannot_succeed_leaves_no_job(cluster, run_file, tmp_path):
    run = run_file(gradient_clipping=None)
    job = cluster.submit(run, "--optimizer.lr=1e20", "--optimizer.weight_decay=0")
    cluster.until_ended(job)
    assert cluster.job(job)["ExitCode"] == "93:0"
    assert cluster.job(job)["Restarts"] == "0"
    assert cluster.run("squeue", "--noheader") == ""
