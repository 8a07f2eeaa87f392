"""A run that goes on with the nodes that it gets, by a real Slurm."""

import pytest

from tests.slurm.runs import damage_of, steps_in

pytestmark = pytest.mark.slurm

LAST_STEP = 60


def test_a_run_goes_on_with_the_nodes_that_are_left(cluster, run_file, tmp_path):
    """A step of three microbatches is one for each of three nodes; of two nodes, one reads all three."""
    run_dir = tmp_path / "run"
    run = run_file(max_steps=LAST_STEP, keep_step=True, gradient_accumulation_steps=3)
    job = cluster.submit(run, "--nodes", "1:3")
    cluster.until(lambda: len(steps_in(run_dir)) > 5, "no step")
    assert cluster.nodes_of(job) == ["n1", "n2", "n3"]
    with cluster.taken(job, ["n3"]):
        cluster.until_completed(job)
        assert cluster.nodes_of(job) == ["n1", "n2"]
    assert damage_of(run_dir, LAST_STEP) == []
    (log,) = (tmp_path / "run.submit").glob("*.log")
    used = [line for line in log.read_text().splitlines() if line.startswith(f"job {job}: training on ")]
    assert used == [f"job {job}: training on {count} nodes" for count in ("3 of 3", "1 of 2")]
