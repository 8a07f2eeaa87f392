"""Runs of a soak: their profile, and their launchers, which end with the soak."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from soak_trainer import DETERMINISTIC_ENV, GIVEN

from launcher.process.child_start import dying_with_parent
from launcher.rundir.records import last_record, read_json
from neobert.data.store.prepare import prepare
from profiles.inherit import FOLDERS_ENV
from profiles.registry import resolve_run

HERE = Path(__file__).resolve().parent
REASON = "a soak: this run is started to be killed"
PATIENCE_S = 300.0
POLL_S = 0.1
OFTEN_WATCHED = {"heartbeat_interval_s": 0.5, "max_restarts": 100}
FULL: dict[str, Any] = {
    "extends": "h200-prod",
    "dataset": {"name": "builtin:python-docs", "config": None, "eval_samples": 256},
    "tokenizer": {"name": None, "revision": None, "vocab_size": 16_384},
    "trainer": {
        "global_batch_size": None,
        "gradient_accumulation_steps": 2,
        "save_steps": 50,
        "eval_steps": 50,
        "logging_steps": 5,
    },
}
TINY: dict[str, Any] = {
    "extends": "cpu-demo",
    "model": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
    "dataset": {"eval_samples": 64},
    "tokenizer": {"vocab_size": 1024},
    "trainer": {"save_steps": 40, "eval_steps": 40, "logging_steps": 5},
}


@dataclass
class Run:
    """One run directory and its current launcher."""

    folder: Path
    environment: dict[str, str]
    launcher: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        command = [sys.executable, str(HERE / "soak_trainer.py"), "train", "-p", "soak", "--resume", "auto"]
        command += ["--set", f"trainer.output_dir={self.folder}", "--unguarded", REASON]
        with self.folder.with_suffix(".log").open("ab") as log:
            self.launcher = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=os.environ | self.environment,
                start_new_session=True,
                preexec_fn=dying_with_parent(signal.SIGTERM),
            )

    @property
    def code(self) -> int | None:
        """The launcher's exit code; None while it runs."""
        return None if self.launcher is None else self.launcher.poll()

    @property
    def is_going_on(self) -> bool:
        return self.launcher is not None and self.code is None

    @property
    def is_finished(self) -> bool:
        return read_json(self.folder / "outcome.json").get("status") == "finished"

    @property
    def trainer(self) -> int | None:
        """Training process as recorded by the launcher; it may have ended."""
        return read_json(self.folder / "manifest.json").get("trainer_pid")

    @property
    def step(self) -> int:
        return last_record(self.folder / GIVEN).get("step", 0)

    def end(self) -> None:
        """Request a save and a stop, and wait for the end."""
        if self.launcher is None:
            return
        if self.launcher.poll() is None:
            self.launcher.terminate()
        self.launcher.wait()
        await_end(self.trainer)


def await_end(pid: int | None) -> None:
    """Wait for a process that is not a child: a trainer without a launcher is saving."""
    deadline_s = time.monotonic() + PATIENCE_S
    while pid is not None and is_alive(pid) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@dataclass
class Beside:
    """Undisturbed runs, one after the other; only the first is required."""

    runs: list[Run]

    def go_on(self) -> None:
        """Start the next run if the last has finished."""
        for run in self.runs:
            if run.is_finished:
                continue
            if run.launcher is None:
                tell(f"{run.folder.name} starts")
                run.launch()
            return

    def end(self) -> None:
        for run in self.runs:
            run.end()


def write_profile(work: Path, asked: argparse.Namespace) -> None:
    """Write the profile of all runs, and prepare its text once."""
    shape = TINY if asked.tiny else FULL
    steps, device = asked.steps or (1500 if asked.tiny else 3000), "cpu" if asked.tiny else "cuda"
    kernels = {} if asked.tiny else {"kernel_backend": asked.kernels, "attn_backend": "auto"}
    profile = {
        **shape,
        "about": {"name": "soak", "kind": "smoke", "intent": REASON, "requires": {"device": device}},
        "model": shape.get("model", {}) | kernels,
        "dataset": shape["dataset"] | {"cache_dir": str(work / "cache")},
        "scheduler": {"warmup_steps": steps // 10},
        "trainer": shape["trainer"] | {"max_steps": steps, "metric_for_best_model": "eval/loss"},
        "watchdog": OFTEN_WATCHED,
    }  # fmt: skip
    folder = work / "profiles"
    folder.mkdir(exist_ok=True)
    (folder / "soak.yaml").write_text(yaml.safe_dump(profile), encoding="utf-8")
    os.environ |= {FOLDERS_ENV: str(folder), "PYTHONPATH": python_path()}
    if asked.deterministic:
        os.environ[DETERMINISTIC_ENV] = "1"
    tell("preparing the text")
    report = prepare(resolve_run("soak").config).report
    tell(json.dumps(report)[:300])


def python_path() -> str:
    """Return a PYTHONPATH with this folder, which contains the trainer."""
    return os.pathsep.join(filter(None, (str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH"))))


def runs(work: Path, has_gpu: bool) -> tuple[Run, list[Run]]:
    """Return the disturbed run on the first device, and the others on the last one."""
    devices = visible_devices() if has_gpu else [""]
    first, last = ({"CUDA_VISIBLE_DEVICES": devices[place]} for place in (0, -1))
    others = [Run(work / name, last) for name in ("undisturbed", "repeated")]
    return Run(work / "disturbed", first), others


def visible_devices() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def tell(words: str) -> None:
    print(time.strftime("%H:%M:%S"), words, flush=True)
