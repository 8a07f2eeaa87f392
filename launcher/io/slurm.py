"""What Slurm says of a job in the environment of its processes. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping


def job_id(environment: Mapping[str, str]) -> str:
    """The job's number; empty outside of one."""
    return environment.get("SLURM_JOB_ID", "")


def job_start_s(environment: Mapping[str, str]) -> float | None:
    """When the job began; None where nobody says."""
    return _time_s(environment, "SLURM_JOB_START_TIME")


def job_end_s(environment: Mapping[str, str]) -> float | None:
    """When the job is killed; None where nobody says."""
    return _time_s(environment, "SLURM_JOB_END_TIME")


def node_number(environment: Mapping[str, str]) -> str:
    """Which of the job's nodes this is, from 0, as it is written there; empty outside of a job."""
    return environment.get("SLURM_NODEID", "")


def _time_s(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name, "")
    return float(text) if text.isdecimal() else None
