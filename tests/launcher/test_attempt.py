"""Which launch may take over a run directory, and what a launch does that was replaced."""

import fcntl
import os
import sys

import pytest

from launcher.process.signal_forwarding import forward_signals
from launcher.process.trainer_process import TRAINER_MODULE, Topology
from launcher.run.launch_context import Launch
from launcher.run.supervision import supervise
from launcher.rundir import directory
from launcher.rundir.directory import require_newest, take_over
from neobert.config.schema import WatchdogConfig
from neobert.errors import EXIT_DO_NOT_REQUEUE, ProjectError
from neobert.runfiles.attempt import TOKEN_ENV, is_replaced
from tests.refusals import refusal_of

FIRST, AGAIN = {"SLURM_JOB_ID": "17"}, {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "1"}
OTHER = {"SLURM_JOB_ID": "18"}


def test_the_newest_launch_has_the_run(tmp_path):
    first = take_over(tmp_path, {})
    assert not is_replaced(tmp_path, first)
    take_over(tmp_path, {})
    assert is_replaced(tmp_path, first)
    assert not is_replaced(tmp_path, ""), "a session without a launcher has no token"


def test_an_attempt_of_a_lost_node_does_not_take_the_run_back(tmp_path):
    current = take_over(tmp_path, AGAIN)
    for refused in (require_newest, take_over):
        assert refusal_of(refused, "TRN004", "taken over", tmp_path, FIRST).exit_code == EXIT_DO_NOT_REQUEUE
    assert not is_replaced(tmp_path, current)
    take_over(tmp_path, OTHER)


@pytest.mark.parametrize(
    ("recorded", "environment", "is_lost"),
    [
        (FIRST, AGAIN, True),
        (FIRST, FIRST, False),
        (AGAIN, FIRST, False),
        (FIRST, AGAIN | {"SLURM_JOB_ID": "18"}, False),
    ],
)
def test_a_lock_of_a_lost_attempt_does_not_stop_the_job_that_slurm_has_started_again(
    recorded, environment, is_lost, tmp_path, monkeypatch
):
    monkeypatch.setattr(directory, "LOCK_TIMEOUT_S", 0.1)
    lost = take_over(tmp_path, recorded)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        if is_lost:
            with directory.lock_run_directory(tmp_path):
                assert is_replaced(tmp_path, lost), "before this launch checks the run"
        else:
            with pytest.raises(ProjectError, match="still uses"), directory.lock_run_directory(tmp_path):
                pass
    finally:
        os.close(descriptor)


@pytest.mark.child
def test_a_replaced_launch_leaves_the_files_to_the_later_one(tmp_path, monkeypatch, command):
    (tmp_path / "logs").mkdir()
    program = (
        "import json, os, pathlib, sys\n"
        f"run = pathlib.Path({str(tmp_path)!r})\n"
        f"assert json.loads((run / 'attempt.json').read_text())['token'] == os.environ[{TOKEN_ENV!r}]\n"
        "(run / 'attempt.json').write_text('{\"token\": \"later\"}')\n"
        '(run / \'outcome.json\').write_text(\'{"status": "finished", "exit_code": 0}\')\n'
        "sys.exit(4)"
    )
    launch = Launch(
        command=[sys.executable, "-c", program, TRAINER_MODULE],
        folder=tmp_path,
        topology=Topology(),
        limits=WatchdogConfig(grace_s=0.2, heartbeat_interval_s=0.1),
        error_file=tmp_path / "error.json",
        attempt=take_over(tmp_path, {}),
    )
    with forward_signals() as forwarder:
        ending = supervise(launch, forwarder, lambda: None)
    assert (ending.status, ending.exit_code, ending.restarts) == ("failed", EXIT_DO_NOT_REQUEUE, 0)
    assert "taken over" in ending.message
    assert (tmp_path / "outcome.json").read_text() == '{"status": "finished", "exit_code": 0}'
