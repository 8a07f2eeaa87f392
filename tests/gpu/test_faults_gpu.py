"""Runs that are killed and stopped on a CUDA device: they go on as if nothing had been.

Two sessions on a GPU differ by the order in which a kernel's atomics add, from 3e-8 in one gradient on; 24
steps make less than 1e-3 of that in the loss. What follows from the data and the schedule has no noise.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from launcher.cli import app
from launcher.commands import train as train_command
from launcher.process import trainer_process
from launcher.rundir.records import read_json
from neobert.runfiles.checkpoint.folders import find_checkpoint
from neobert.training.loop import assembly
from tests.killed_run import killed_before
from tests.training.conftest import TINY, corpus, exact_lines, make_run, read_lines, run, write_run
from validators.finding import Level

__all__ = ["corpus", "make_run", "run"]

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler, and of operators that add in any order

ROOT = Path(__file__).parents[2]
# Relative; of the accuracy, which is of a few dozen targets, two of them.
NOISE = {"train/loss": 1e-3, "train/grad_norm": 1e-2, "eval/loss": 1e-3, "eval/accuracy": 0.05}
STEPS = 24
SECTIONS: dict[str, dict[str, Any]] = {
    "model": {
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 768,
        "max_position_embeddings": 64,
    },
    "dataset": {"max_seq_length": 64},
    "optimizer": {"lr": 1e-3},
    "trainer": {"mixed_precision": "bf16", "max_steps": STEPS, "save_steps": 3, "logging_steps": 1},
}
# Many times what a step of this model takes, and still a fraction of a test's patience. The first evaluation
# compiles kernels, for which a busy host needs more than five seconds.
WATCHED = {
    "step_limit_s": 5.0,
    "data_wait_limit_s": 5.0,
    "learned_floor_s": 15.0,
    "grace_s": 0.5,
    "heartbeat_interval_s": 0.2,
    "max_restarts": 3,
}
REASON = "a test of faults, which plants them itself"


def with_trainer(**keys: Any) -> dict[str, dict[str, Any]]:
    return SECTIONS | {"trainer": SECTIONS["trainer"] | keys}


@pytest.fixture
def launch(tmp_path, corpus, monkeypatch):
    """Train through the command line, with a fault planted in each of the first sessions; return where."""
    monkeypatch.setattr(trainer_process, "TRAINER_MODULE", "tests.faults.planted")
    # The devices have tests of their own: measured at each launch, they would take most of the time here.
    monkeypatch.setattr(train_command, "default_levels", lambda _: (Level.STATIC, Level.HOST))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)

    def train(name: str, *faults: dict[str, Any]) -> tuple[int, Path]:
        write_profile(tmp_path, corpus)
        monkeypatch.setenv("NEOBERT_PROFILE_PATH", str(tmp_path / "profiles"))
        monkeypatch.setenv("PLANTED", json.dumps(faults))
        requested = ["train", "-p", "planted", "--resume", "auto", "--unguarded", REASON]
        return app.run([*requested, "--set", f"trainer.output_dir={tmp_path / name}"]), tmp_path / name

    return train


def write_profile(folder: Path, corpus: dict[str, str]) -> None:
    about = {"name": "planted", "kind": "smoke", "intent": REASON, "requires": {"num_gpus": 1}}
    sections = {name: TINY.get(name, {}) | SECTIONS.get(name, {}) for name in {**TINY, **SECTIONS}}
    sections["dataset"] |= corpus
    sections["watchdog"] = WATCHED
    (folder / "profiles").mkdir(exist_ok=True)
    content = yaml.safe_dump({"about": about, **sections})
    (folder / "profiles" / "planted.yaml").write_text(content, encoding="utf-8")


def assert_same_trajectory(run_dir: Path, expected: Path) -> None:
    found, wanted = exact_lines(run_dir), exact_lines(expected)
    assert [line["step"] for line in found] == list(range(STEPS + 1))
    for line, other in zip(found, wanted, strict=True):
        assert line.keys() == other.keys()
        for name, value in line.items():
            noise = NOISE.get(name, 0.0)
            assert value == pytest.approx(other[name], rel=noise, abs=noise), (line["step"], name)
    losses = [line["train/loss"] for line in found if "train/loss" in line]
    assert losses[-1] < losses[0] * (
        1 - 20 * NOISE["train/loss"]
    )  # or the noise would hide a run that begins anew


@pytest.mark.e2e
def test_a_run_that_is_killed_goes_on_by_itself_on_the_same_trajectory(launch):
    code, undisturbed = launch("undisturbed")
    assert code == 0
    code, killed = launch("killed", {"kind": "killed", "step": 8}, {"kind": "killed", "step": 17})
    assert code == 0
    reported = read_json(killed / "manifest.json")["restarts"]
    assert ["SIGKILL" in restart["why"] for restart in reported] == [True, True]
    assert_same_trajectory(killed, undisturbed)


def test_with_kernels_that_add_in_a_fixed_order_it_is_equal_to_the_last_bit(make_run, run, monkeypatch):
    make_reproducible = assembly.make_reproducible

    def deterministic(*arguments: Any) -> None:
        make_reproducible(*arguments)
        torch.use_deterministic_algorithms(True, warn_only=True)

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(assembly, "make_reproducible", deterministic)
    sections = with_trainer(async_save=False) | {
        "model": SECTIONS["model"] | {"kernel_backend": "torch", "attn_backend": "sdpa"}
    }
    whole, stopped = make_run("whole", **sections), make_run("stopped", **sections)
    assert run(whole) == 0
    with killed_before(11):
        run(stopped)
    assert run(stopped) == 0
    assert exact_lines(stopped) == exact_lines(whole)


@pytest.mark.e2e
def test_asked_to_stop_it_saves_and_asks_to_be_queued_again(tmp_path, corpus):
    steps = 1500
    run_dir = write_run(tmp_path / "run", corpus, with_trainer(max_steps=steps, save_steps=500, eval_steps=0))
    command = [sys.executable, "-m", "neobert.train", str(run_dir / "resolved.json")]
    with (run_dir / "log").open("wb") as log:
        trainer = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=os.environ)
        try:
            await_lines(run_dir / "metrics.jsonl", 20, trainer)
            seen = read_lines(run_dir / "metrics.jsonl")[-1]["step"]
            trainer.send_signal(signal.SIGTERM)
            assert trainer.wait(120) == 75, (run_dir / "log").read_text()[-3000:]
        finally:
            trainer.kill()
    outcome = read_json(run_dir / "outcome.json")
    assert (outcome["status"], outcome["exit_code"]) == ("preempted", 75)
    assert 0 < seen <= outcome["step"] < steps
    assert find_checkpoint(run_dir / "checkpoints", "auto")[1].step == outcome["step"]
    assert subprocess.run(command, capture_output=True, cwd=ROOT, check=False, timeout=300).returncode == 0
    trained = [line["step"] for line in read_lines(run_dir / "metrics.jsonl") if "train/loss" in line]
    assert trained == list(range(1, steps + 1))


def await_lines(path: Path, count: int, child: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + 180
    while time.monotonic() < deadline_s and child.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.02)
