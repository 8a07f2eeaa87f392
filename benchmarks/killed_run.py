"""Losses of a run that is killed, compared with those of the same run without interruption.

    python benchmarks/killed_run.py --output docs/measurements

Both train `cpu-demo` for the same steps. One run gets SIGKILL three times: twice only its trainer, which the
launcher restarts, and once its launcher too, after which the same command is given again. The value is the
largest difference between the losses, of training and of evaluations, at any step.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from measurement import write_measurement

from launcher.htmlreport.reader import read_ranks
from launcher.rundir.records import last_beat, read_json
from neobert.runfiles.run_dir import METRICS
from neobert.training.telemetry.jsonl_writer import iter_rows

STEPS, SAVE_EVERY, EVALUATE_EVERY, LOG_EVERY = 240, 40, 40, 2
KILLS = ((66, "trainer"), (130, "launcher and trainer"), (190, "trainer"))
LIMIT_S = 1800.0
POLL_S = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the measurement")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        alone, killed = Path(folder, "alone"), Path(folder, "killed")
        start(alone).wait(LIMIT_S)
        kills = train_and_kill(killed)
        losses = {
            run.name: {name: values(run, name) for name in ("train/loss", "eval/loss")}
            for run in (alone, killed)
        }
        restarts = read_json(killed / "manifest.json")
    pairs = [
        (first[1], second[1])
        for name in ("train/loss", "eval/loss")
        for first, second in zip(losses["alone"][name], losses["killed"][name], strict=True)
    ]
    difference = max(abs(first - second) for first, second in pairs)
    launches = [*restarts["earlier"], restarts]
    detail = {
        "profile": "cpu-demo",
        "steps": STEPS,
        "save_steps": SAVE_EVERY,
        "compared_losses": len(pairs),
        "kills": kills,
        "restarts_by_the_launcher": sum(len(launch.get("restarts", [])) for launch in launches),
        "launches": len(launches),
        "losses": losses["killed"],
    }
    print(write_measurement(chosen.output / "killed-run.json", difference, "nats", 0.0, detail))
    return int(difference != 0 or len(kills) != len(KILLS))


def start(run_dir: Path) -> subprocess.Popen[bytes]:
    keys = {
        "max_steps": STEPS,
        "save_steps": SAVE_EVERY,
        "eval_steps": EVALUATE_EVERY,
        "logging_steps": LOG_EVERY,
    }
    overrides = [word for key, value in keys.items() for word in (f"--trainer.{key}", str(value))]
    command = [sys.executable, "-m", "launcher", "train", "-p", "cpu-demo", *overrides]
    command += ["--trainer.output_dir", str(run_dir), "--resume", "auto"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def train_and_kill(run_dir: Path) -> list[dict[str, Any]]:
    """Train to the end; return for each kill its step, and the step from which the next session resumed."""
    kills: list[dict[str, Any]] = []
    launcher = start(run_dir)
    for step, who in KILLS:
        wait_for(run_dir, launcher, step)
        trainer = int(read_json(run_dir / "manifest.json")["trainer_pid"])
        if who != "trainer":
            launcher.kill()
            launcher.wait()
        with suppress(ProcessLookupError):
            os.kill(trainer, signal.SIGKILL)
        at = int(last_beat(run_dir, 0)["step"])
        kills.append({"step": at, "killed": who})
        if who != "trainer":
            launcher = start(run_dir)
        while int(last_beat(run_dir, 0).get("step") or 0) >= at and launcher.poll() is None:
            time.sleep(POLL_S)
    if launcher.wait(LIMIT_S):
        raise RuntimeError(f"the killed run ended with {launcher.returncode}")
    (rank,), _ = read_ranks(run_dir)
    resumed = sorted(rank.sessions)
    return [kill | {"resumed_from": step} for kill, step in zip(kills, resumed, strict=True)]


def wait_for(run_dir: Path, launcher: subprocess.Popen[bytes], step: int) -> None:
    """Wait until the run has trained this step. Raises RuntimeError if it ends earlier."""
    while int(last_beat(run_dir, 0).get("step") or 0) < step:
        if launcher.poll() is not None:
            raise RuntimeError(f"the run ended with {launcher.returncode} before step {step}")
        time.sleep(POLL_S)


def values(run_dir: Path, name: str) -> list[tuple[int, float]]:
    return [(row["step"], row[name]) for row in iter_rows(run_dir / METRICS) if name in row]


if __name__ == "__main__":
    sys.exit(main())
