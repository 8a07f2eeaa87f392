"""Attempts at a run: the token of a launch, and which launch may take over from which."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path

from launcher.io.files import write_json
from launcher.rundir.records import Record, read_json
from neobert.runfiles.attempt import FILE, replaced_error


def take_over(folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Make this launch the one that may change the run, and return its token."""
    require_newest(folder, environment)
    token = uuid.uuid4().hex
    job = {"job": environment.get("SLURM_JOB_ID", ""), "restarts": _restarts(environment)}
    write_json(folder / FILE, {"token": token, **job, "hostname": socket.gethostname(), "pid": os.getpid()})
    return token


def require_newest(folder: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Raise ProjectError if a later attempt of this Slurm job has begun: this one is of a lost node."""
    before = read_json(folder / FILE)
    if _is_same_job(before, environment) and _number_of(before) > _restarts(environment):
        raise replaced_error(folder)


def follows_lost_attempt(folder: Path, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether Slurm has started this job again after the attempt in the run directory.

    To Slurm that attempt has ended, but processes of a lost node may still run.
    """
    before = read_json(folder / FILE)
    return _is_same_job(before, environment) and _number_of(before) < _restarts(environment)


def _is_same_job(before: Record, environment: Mapping[str, str]) -> bool:
    return bool(before.get("job")) and before.get("job") == environment.get("SLURM_JOB_ID")


def _restarts(environment: Mapping[str, str]) -> int:
    text = environment.get("SLURM_RESTART_COUNT", "")
    return int(text) if text.isdecimal() else 0


def _number_of(before: Record) -> int:
    number = before.get("restarts")
    return number if isinstance(number, int) else 0
