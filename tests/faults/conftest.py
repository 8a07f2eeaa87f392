"""What the fault tests share: a script in a process of its own, and runs like those of `tests/training`."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.process import trainer_process
from launcher.process.signal_forwarding import forward_signals
from launcher.process.trainer_process import Topology, trainer_command
from launcher.run.launch_context import Launch
from launcher.run.supervision import supervise
from neobert.config.schema import WatchdogConfig
from tests.faults import machine
from tests.training.conftest import corpus, exact, finished, make_run, metrics, outcome, run, uninterrupted

__all__ = ["corpus", "exact", "finished", "make_run", "metrics", "outcome", "run", "uninterrupted"]

TIGHT = {
    "step_limit_s": 3.0,
    "data_wait_limit_s": 3.0,
    "learned_floor_s": 3.0,
    "grace_s": 0.2,
    "heartbeat_interval_s": 0.2,
    "max_restarts": 3,
}
# The first steps of a session count as its compilation: a fault in them would have a longer limit.
STEPS = {"max_steps": 12, "save_steps": 3, "eval_steps": 0, "logging_steps": 1}


ROOT = Path(__file__).parents[2]
PATIENCE_S = 1200


@pytest.fixture
def ask(capsys, tmp_path, monkeypatch):
    """Run a command line in a folder of its own; return its exit code and its report."""
    monkeypatch.chdir(tmp_path)
    return machine.launch(capsys)


@pytest.fixture
def report(tmp_path, warm_python):
    """Run a script beside this file and return the JSON object that it prints."""

    def run_script(name, *arguments):
        command = [warm_python, "-m", f"tests.faults.{name}", *map(str, arguments)]
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert ended.stdout, (ended.returncode, ended.stderr[-3000:])
        return json.loads(ended.stdout)

    return run_script


@pytest.fixture
def launch(make_run, monkeypatch, warm_python):
    """Launch a run with a fault planted in each of its first sessions; return its directory and its end.

    Its ranks are forks of a warm interpreter, unless `is_warm` is false; torchrun is always itself.
    """
    monkeypatch.setattr(trainer_process, "TRAINER_MODULE", "tests.faults.planted")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)

    def run(*faults, ranks=1, sections=None, is_warm=True, **limits):
        limits = TIGHT | limits
        planned = {
            "trainer": STEPS,
            "distributed": {"nproc_per_node": ranks},
            "guard": {"loss_spike_factor": 5.0},
        }
        given = {name: planned.get(name, {}) | values for name, values in (sections or {}).items()}
        run_dir = make_run(**planned | given, watchdog=limits)
        monkeypatch.setenv("PLANTED", json.dumps(faults))
        logs, topology = run_dir / "logs", Topology(nproc_per_node=ranks)
        logs.mkdir()
        command = trainer_command(run_dir / "resolved.json", logs, topology)
        if is_warm:
            command[command.index(trainer_process.TRAINER_MODULE) - 2] = warm_python
        launch = Launch(
            command=command,
            folder=run_dir,
            topology=topology,
            limits=replace(WatchdogConfig(), **limits),
            error_file=run_dir / "error.json",
        )
        with forward_signals() as forwarder:
            return run_dir, supervise(launch, forwarder, lambda: None)

    return run
