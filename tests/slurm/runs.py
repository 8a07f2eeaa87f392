"""Small runs as jobs, their preemptions, and what is left of them."""

import json
import random
import time
from pathlib import Path
from typing import Any

import yaml

from neobert.runfiles.checkpoint.folders import checkpoint_steps
from neobert.runfiles.checkpoint.manifest import verify_checkpoint
from tests.slurm.cluster import Cluster

RUN = {
    "profile": "cpu-demo",
    "model": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    "scheduler": {"warmup_steps": 5},
    "trainer": {"max_steps": 60, "save_steps": 10, "logging_steps": 1, "eval_steps": 30},
}
STEPS_OF_A_PREEMPTION = 30
"""Most steps from the start of a session to the stop of a preemption, at 10 steps a second."""
START_UP_S, LATEST_STEP = 8.0, 12
SLOW_SYNC_S = 0.3
STARTING_UP = 0.3
"""Share of preemptions before the first step of their session."""


def write_run_file(folder: Path, **trainer: Any) -> Path:
    """Write a run file with these keys of the trainer; its run directory is `run` in the same folder."""
    path = folder / "run.yaml"
    own = {**RUN["trainer"], "output_dir": str(folder / "run"), **trainer}
    path.write_text(yaml.safe_dump({**RUN, "trainer": own}))
    return path


def steps_in(run_dir: Path) -> list[int]:
    """Return the steps in metrics.jsonl, in the order of the file."""
    path = run_dir / "metrics.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []


def _newest_step(run_dir: Path) -> int:
    return max(steps_in(run_dir), default=0)


def launches_of(run_dir: Path) -> int:
    """Return the number of launches in the run directory's manifest."""
    return 1 + len(json.loads((run_dir / "manifest.json").read_text())["earlier"])


def is_saving(run_dir: Path) -> bool:
    """Return whether a checkpoint is being written."""
    return any((run_dir / "checkpoints").glob(".tmp-*"))


def preempt_at_random(cluster: Cluster, job: str, run_dir: Path, count: int, seed: int) -> list[str]:
    """Preempt a job so often, at moments that the seed determines; return the moments.

    Every fifth one, from the third, is in a save, which is made slow for it.
    """
    chance, moments = random.Random(seed), []
    for number in range(count):
        cluster.until(lambda: cluster.state(job) == "RUNNING", f"job {job} does not start")
        if number % 5 == 2:
            moments.append(_preempt_in_a_save(cluster, job, run_dir))
        elif chance.random() < STARTING_UP:
            wait_s = chance.uniform(0, START_UP_S)
            time.sleep(wait_s)
            moments.append(f"{wait_s:.1f} s after the start")
            cluster.preempt(job)
        else:
            goal = _newest_step(run_dir) + chance.randint(1, LATEST_STEP)
            cluster.until(lambda goal=goal: _newest_step(run_dir) >= goal, f"no step {goal}: {run_dir}")
            moments.append(f"after step {goal}")
            cluster.preempt(job)
    return moments


def _preempt_in_a_save(cluster: Cluster, job: str, run_dir: Path) -> str:
    with cluster.slow_disk(fsync=SLOW_SYNC_S):
        cluster.until(lambda: is_saving(run_dir), f"no save: {run_dir}")
        step = _newest_step(run_dir)
        cluster.preempt(job)
    return f"in the save at step {step}"


def damage_of(run_dir: Path, last_step: int) -> list[str]:
    """Return what is wrong with a run that has ended: its steps, damaged or partial checkpoints."""
    steps, root = steps_in(run_dir), run_dir / "checkpoints"
    found = [] if steps == list(range(last_step + 1)) else [f"the steps are {steps}"]
    for step in checkpoint_steps(root):
        verify_checkpoint(root / str(step))
    if checkpoint_steps(root)[-1:] != [last_step]:
        found.append(f"the last checkpoint is not of step {last_step}")
    return found + [f"{path.name} was left" for path in root.glob(".tmp-*")]
