"""Slurm job of this process, from its environment. Times are seconds since the epoch."""

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
    """Return the rank of this node within the job, from 0, as text; empty outside a job."""
    return environment.get("SLURM_NODEID", "")


def _time_s(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name, "")
    return float(text) if text.isdecimal() else None
