"""A run that is sharded over two nodes of two ranks each, and loses a node in a save, by a real Slurm."""

from pathlib import Path

import pytest

from neobert.runfiles.checkpoint.folders import checkpoint_steps
from neobert.training.checkpoint.parts import PARTS
from tests.slurm.runs import damage_of, launches_of

pytestmark = pytest.mark.slurm

SHARDED = ("--distributed.mode=fsdp2", "--distributed.nproc_per_node=2")
LAST_STEP, NUM_RANKS = 30, 4
SLOW_RENAME_S = 10.0


def test_a_node_that_dies_while_it_joins_rows_costs_the_steps_since_the_save_before(
    cluster, run_file, tmp_path
):
    run_dir = tmp_path / "run"
    root = run_dir / "checkpoints"
    job = cluster.submit(run_file(max_steps=LAST_STEP), "--nodes", "2", *SHARDED)
    cluster.until(lambda: checkpoint_steps(root) == [10], "no save")
    joins, other = cluster.nodes_of(job)
    with cluster.slow_disk(rename=SLOW_RENAME_S):
        cluster.until(lambda: is_joining(root), "no rows are joined")
    with cluster.lost(joins, is_noticed=True) as processes:
        for process in processes:
            process.kill()
        assert is_joining(root)
        cluster.until_restarted(job, 0)
        cluster.release(job)
        cluster.until(lambda: launches_of(run_dir) > 1, "the job does not continue elsewhere")
        assert other in cluster.nodes_of(job)
    cluster.until_completed(job)
    assert damage_of(run_dir, LAST_STEP) == []
    (log,) = (tmp_path / "run.submit").glob("*.log")
    assert "resuming from step 10:" in log.read_text()


def is_joining(root: Path) -> bool:
    """Return whether a save has the rows of all ranks, and joined weights that are not renamed."""
    return any(
        len(list((each / PARTS).iterdir())) == NUM_RANKS
        for each in root.glob(".tmp-*")
        if (each / "model-00001.safetensors").exists()
    )
