"""The batch scripts of the examples, with a launcher and a scheduler that pretend."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from launcher.probes.scheduler import probe_scheduler

pytestmark = pytest.mark.child

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT, FOR_NODES = EXAMPLES / "slurm.sbatch", EXAMPLES / "slurm-nodes.sbatch"
SCRIPTS = pytest.mark.parametrize("script", [SCRIPT, FOR_NODES], ids=["node", "nodes"])
LAUNCHER = """#!/bin/bash
echo "$@" > arguments
echo $$ > pid
trap 'sleep 0.3; touch saved; exit 75' TERM
touch ready
[ -n "$CODE" ] && exit "$CODE"
while :; do sleep 0.05; done
"""
SCHEDULER = {
    "scontrol": 'if [ "$1" = show ]; then echo node-a; echo node-b; else echo "$@" > requeued; '
    '[ -z "$REFUSAL" ] || { echo "$REFUSAL" >&2; exit 1; }; fi',
    "srun": 'touch step; while [[ "$1" == -* ]]; do shift; done; exec "$@"',
    "scancel": 'echo "$@" > cancelled; kill -TERM "$(cat pid)"; exec sleep "${BLOCKS_S:-0}"',
}


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    commands = {name: f"#!/bin/bash\n{text}\n" for name, text in SCHEDULER.items()}
    for name, text in (commands | {"neobert-launch": LAUNCHER}).items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    nodes = {"SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_JOB_NUM_NODES": "2"}
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17", **nodes}


def warn(script: Path, number: int, job: dict[str, str]) -> int:
    """Start a job, warn it once its launcher runs, and return the code of its end."""
    with subprocess.Popen(["bash", str(script), "run.yaml", "--strict"], env=job) as batch:
        while not Path("ready").exists():
            assert batch.poll() is None
            time.sleep(0.01)
        batch.send_signal(number)
        code = batch.wait(timeout=30)
    assert Path("saved").exists()
    assert Path("step").exists(), "at a preemption, only steps are warned in time"
    return code


@SCRIPTS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_job_that_is_warned_saves_and_queues_itself_again(
    script: Path, number: int, job: dict[str, str]
) -> None:
    assert warn(script, number, job) == 0
    assert Path("requeued").read_text() == "requeue 17\n"
    assert Path("cancelled").read_text() == "--signal=TERM 17\n"
    of_nodes = "" if script == SCRIPT else "--nnodes 2 --rdzv-endpoint node-a:20017 "
    words = f"train --config run.yaml --resume auto {of_nodes}--strict\n"
    assert Path("arguments").read_text() == words


@SCRIPTS
def test_a_task_of_an_array_warns_and_queues_itself_and_not_the_array(
    script: Path, job: dict[str, str]
) -> None:
    """The last task of an array has the number of the array: all tasks were killed and requeued."""
    assert warn(script, signal.SIGTERM, {**job, "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "2"}) == 0
    assert Path("requeued").read_text() == "requeue 17_2\n"
    assert Path("cancelled").read_text() == "--signal=TERM 17_2\n"


@SCRIPTS
def test_a_scheduler_that_blocks_does_not_delay_the_end(script: Path, job: dict[str, str]) -> None:
    began_s = time.monotonic()
    assert warn(script, signal.SIGTERM, {**job, "BLOCKS_S": "40"}) == 0
    assert time.monotonic() - began_s < 20


@SCRIPTS
@pytest.mark.parametrize(
    ("refusal", "code"), [("Job is pending execution", 0), ("Requeue is disabled for the job", 75)]
)
def test_a_job_that_slurm_has_queued_already_ends_without_an_error(
    script: Path, refusal: str, code: int, job: dict[str, str]
) -> None:
    assert warn(script, signal.SIGTERM, {**job, "REFUSAL": refusal}) == code


@SCRIPTS
@pytest.mark.parametrize("code", [0, 1, 4, 93])
def test_any_other_end_is_the_end_of_the_job(script: Path, code: int, job: dict[str, str]) -> None:
    done = subprocess.run(["bash", str(script), "run.yaml"], env={**job, "CODE": str(code)}, check=False)
    assert done.returncode == code
    assert not Path("requeued").exists()


@SCRIPTS
def test_the_lead_that_the_script_declares_is_the_one_it_asks_for(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    asked, declared = re.search(r"B:TERM@(\d+)", text), re.search(r"NEOBERT_SIGNAL_LEAD_S=(\d+)", text)
    assert asked
    assert declared
    environment = {"SLURM_JOB_ID": "17", "SLURM_JOB_END_TIME": "99", "NEOBERT_SIGNAL_LEAD_S": declared[1]}
    assert probe_scheduler(environment).signal_lead_s == float(asked[1])
