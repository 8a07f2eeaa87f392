"""The batch script of the examples, with a launcher and a scheduler that pretend."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from launcher.probes.scheduler import probe_scheduler

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm.sbatch"
LAUNCHER = """#!/bin/bash
echo "$@" > arguments
trap 'sleep 0.3; touch saved; exit 75' TERM
touch ready
[ -n "$CODE" ] && exit "$CODE"
while :; do sleep 0.05; done
"""


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    for name, text in (("neobert-launch", LAUNCHER), ("scontrol", "#!/bin/bash\necho $@ > requeued\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_job_that_is_warned_saves_and_queues_itself_again(number: int, job: dict[str, str]) -> None:
    with subprocess.Popen(["bash", str(SCRIPT), "run.yaml", "--strict"], env=job) as batch:
        while not Path("ready").exists():
            assert batch.poll() is None
            time.sleep(0.01)
        batch.send_signal(number)
        assert batch.wait(timeout=30) == 0
    assert Path("saved").exists()
    assert Path("requeued").read_text() == "requeue 17\n"
    assert Path("arguments").read_text() == "train --config run.yaml --resume auto --strict\n"


@pytest.mark.parametrize("code", [0, 1, 4, 93])
def test_any_other_end_is_the_end_of_the_job(code: int, job: dict[str, str]) -> None:
    done = subprocess.run(["bash", str(SCRIPT), "run.yaml"], env={**job, "CODE": str(code)}, check=False)
    assert done.returncode == code
    assert not Path("requeued").exists()


def test_the_lead_that_the_script_declares_is_the_one_it_asks_for() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    asked, declared = re.search(r"B:TERM@(\d+)", text), re.search(r"NEOBERT_SIGNAL_LEAD_S=(\d+)", text)
    assert asked
    assert declared
    environment = {"SLURM_JOB_ID": "17", "SLURM_JOB_END_TIME": "99", "NEOBERT_SIGNAL_LEAD_S": declared[1]}
    assert probe_scheduler(environment).signal_lead_s == float(asked[1])
