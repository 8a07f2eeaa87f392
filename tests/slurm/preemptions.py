"""Preempt a run on two nodes of a real Slurm at random moments, and report what is left of it.

python -m tests.slurm.preemptions --preemptions 50 --output docs/measurements/slurm-preemptions.json
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.measurement import write_measurement
from tests.slurm.cluster import JOB_S, running
from tests.slurm.runs import STEPS_OF_A_PREEMPTION, damage_of, preempt_at_random, write_run_file

STEP_S = 0.5  # on a machine that does other work too


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--preemptions", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help="the file of the measurement")
    requested = parser.parse_args(arguments)
    last_step = requested.preemptions * STEPS_OF_A_PREEMPTION + 100
    with tempfile.TemporaryDirectory(prefix="slurm-") as daemons, tempfile.TemporaryDirectory() as runs:
        with running(Path(daemons)) as cluster:
            run_file = write_run_file(Path(runs), max_steps=last_step, eval_steps=500)
            job = cluster.submit(run_file, "--nodes", "2", "--requeue-limit", str(requested.preemptions))
            moments = preempt_at_random(
                cluster, job, Path(runs, "run"), requested.preemptions, requested.seed
            )
            cluster.until_ended(job, timeout_s=JOB_S + last_step * STEP_S)
            state = cluster.state(job)
        damage = damage_of(Path(runs, "run"), last_step)
    exact = 0 if damage or state != "COMPLETED" else requested.preemptions
    detail = {
        "seed": requested.seed,
        "state": state,
        "damage": damage,
        "last_step": last_step,
        "moments": moments,
    }
    write_measurement(
        requested.output, exact, "preemptions without a lost or repeated step", requested.preemptions, detail
    )
    return int(exact < requested.preemptions)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
