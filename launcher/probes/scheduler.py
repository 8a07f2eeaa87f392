"""The batch scheduler around this process, from what it leaves in the environment."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping

from launcher.deadline import JOB_END_ENV
from validators.facts import SchedulerFacts

NONE = SchedulerFacts(name="", job_id="", walltime_left_s=None, signal_lead_s=0.0)
SIGNAL = re.compile(r"@(\d+)$")
TIME_LEFT = re.compile(r"^(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)$")
TIMEOUT_S = 5.0


def probe_scheduler(environment: Mapping[str, str]) -> SchedulerFacts:
    """Read the job, the time that is left and the lead of its warning signal; outside a job all are empty."""
    job_id = environment.get("SLURM_JOB_ID", "")
    if not job_id:
        return NONE
    end_time = environment.get(JOB_END_ENV, "")
    return SchedulerFacts(
        name="slurm",
        job_id=job_id,
        walltime_left_s=_time_left(end_time, job_id),
        signal_lead_s=_signal_lead(environment),
        end_is_known=end_time.isdigit(),
    )


def _signal_lead(environment: Mapping[str, str]) -> float:
    """Slurm does not pass `--signal` on to the job: the script that asks for it says so itself."""
    declared = SIGNAL.search(environment.get("SBATCH_SIGNAL", ""))
    return float(environment.get("NEOBERT_SIGNAL_LEAD_S") or (declared[1] if declared else 0.0))


def _time_left(end_time: str, job_id: str) -> float | None:
    if end_time.isdigit():
        return float(end_time) - time.time()
    try:
        answer = subprocess.run(
            ["squeue", "--noheader", "--job", job_id, "--format", "%L"],
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_time_left(answer.stdout.strip())


def parse_time_left(text: str) -> float | None:
    """Seconds in Slurm's `[days-][hours:]minutes:seconds`; None for UNLIMITED and whatever else it says."""
    match = TIME_LEFT.match(text)
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
