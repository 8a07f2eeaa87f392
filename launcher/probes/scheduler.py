"""Batch scheduler of this process, from its environment. Times are seconds since the epoch."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping

from launcher.probes.probe import IncompleteError
from validators.facts_host import SchedulerFacts

NONE = SchedulerFacts(name="", job_id="", walltime_left_s=None, signal_lead_s=0.0)
SIGNAL = re.compile(r"@(\d+)$")
TIME_LEFT = re.compile(r"^(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)$")
BY_PARTITION = re.compile(r"^PreemptType\s*= preempt/partition_prio$", re.MULTILINE)
KILL_WAIT = re.compile(r"^KillWait\s*= (\d+) sec$", re.MULTILINE)
GRACE = re.compile(r"\bGraceTime=(\d+)\b")
NEVER_PREEMPTED = "PreemptMode=OFF"
TIMEOUT_S = 5.0
LEAD_ENV = "NEOBERT_SIGNAL_LEAD_S"


def probe_scheduler(environment: Mapping[str, str]) -> SchedulerFacts:
    """Return the Slurm job of this process, with its time left and its warnings; `NONE` outside a job."""
    job, end_s = job_id(environment), job_end_s(environment)
    if not job:
        return NONE
    return SchedulerFacts(
        name="slurm",
        job_id=job,
        walltime_left_s=_query_time_left_s(job) if end_s is None else end_s - time.time(),
        signal_lead_s=_read_signal_lead_s(environment),
        end_is_known=end_s is not None,
        preempt_lead_s=_query_preempt_lead_s(environment),
        is_step=_is_slurm_step(environment),
    )


def _read_signal_lead_s(environment: Mapping[str, str]) -> float:
    """Return the seconds between the warning signal and the kill; 0 if no warning is requested.

    Slurm does not pass this value to the job, so it is read from NEOBERT_SIGNAL_LEAD_S, or else from
    SBATCH_SIGNAL. Raises IncompleteError if it is not a whole number of seconds.
    """
    declared = SIGNAL.search(environment.get("SBATCH_SIGNAL", ""))
    text = environment.get(LEAD_ENV) or (declared[1] if declared else "0")
    if not text.isdecimal():
        raise IncompleteError(f"{LEAD_ENV} is {text!r}, not a whole number of seconds")
    return float(text)


def _query_time_left_s(job: str) -> float | None:
    return parse_time_left(_run_slurm_command("squeue", "--noheader", "--job", job, "--format", "%L"))


def _query_preempt_lead_s(environment: Mapping[str, str]) -> float | None:
    """Return the seconds from Slurm's warning to the kill at a preemption, or None if it does not warn."""
    partition = environment.get("SLURM_JOB_PARTITION", "")
    config = _run_slurm_command("scontrol", "show", "config") if partition else ""
    kill_wait = KILL_WAIT.search(config)
    if kill_wait is None or not BY_PARTITION.search(config):
        return None
    settings = _run_slurm_command("scontrol", "show", "partition", partition, "--oneliner")
    grace = GRACE.search(settings)
    if grace is None or NEVER_PREEMPTED in settings:
        return None
    return float(kill_wait[1]) + (float(grace[1]) if _is_slurm_step(environment) else 0.0)


def _is_slurm_step(environment: Mapping[str, str]) -> bool:
    """Return whether srun started this process; Slurm warns other processes only after the grace time."""
    return bool(environment.get("SLURM_STEP_ID"))


def _run_slurm_command(*command: str) -> str:
    """Return the output of a Slurm command; empty if the command is missing or does not respond."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()


def parse_time_left(text: str) -> float | None:
    """Parse Slurm's `[days-][hours:]minutes:seconds` to seconds; None for any other text, as UNLIMITED."""
    match = TIME_LEFT.match(text)
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def job_id(environment: Mapping[str, str]) -> str:
    """Return the ID of the Slurm job; empty outside a job."""
    return environment.get("SLURM_JOB_ID", "")


def job_start_s(environment: Mapping[str, str]) -> float | None:
    """Return the start time of the job in seconds since the epoch, or None if it is unknown."""
    return _epoch_time_s(environment, "SLURM_JOB_START_TIME")


def job_end_s(environment: Mapping[str, str]) -> float | None:
    """Return the time at which the job is killed in seconds since the epoch, or None if it is unknown."""
    return _epoch_time_s(environment, "SLURM_JOB_END_TIME")


def node_number(environment: Mapping[str, str]) -> str:
    """Return the rank of this node within the job, from 0, as text; empty outside a job."""
    return environment.get("SLURM_NODEID", "")


def _epoch_time_s(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name, "")
    return float(text) if text.isdecimal() else None
