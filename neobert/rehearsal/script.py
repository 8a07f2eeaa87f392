"""Number of steps, config and run directory of a rehearsal."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from neobert import __version__
from neobert.config import digest, from_dict, to_dict
from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.plan.pieces import piece_length
from neobert.receipt import FILE_NAME as RECEIPT
from neobert.receipt import Receipt, utc_now, write_receipt
from neobert.runfiles.run_dir import CHECKPOINTS, RESOLVED

FOLDER, RESUMED_FOLDER = "run", "resumed"
MAX_COMPARED = 4
PARTS_BEFORE_SAVE = 5
PARTS = PARTS_BEFORE_SAVE + 2
EVAL_BATCHES = 8
BEAT_S = 0.5
LIFETIME = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class RehearsalScript:
    """Step numbers of a rehearsal.

    Attributes:
        compared: number of steps that each resumed run trains, to be compared with the uninterrupted run.
        saved: step of the checkpoint that the first resume starts from; the second starts `compared` later.
        total: steps of the uninterrupted run.
        planned: steps of the requested run, for its learning-rate schedule.
    """

    compared: int
    saved: int
    total: int
    planned: int

    @property
    def warm_up(self) -> int:
        """Return the number of warm-up steps, which are excluded from the measured speed."""
        return self.compared


def plan_rehearsal(max_steps: int) -> RehearsalScript:
    """Choose the steps of a rehearsal. Raises `ProjectError` REH001 if a run of `max_steps` is too short."""
    compared = min(MAX_COMPARED, max_steps // PARTS)
    if compared == 0:
        message = f"trainer.max_steps is {max_steps}, too few for a rehearsal (at least {PARTS})"
        hint = f"set trainer.max_steps to {PARTS} or more, or leave rehearsal out of --level"
        raise ProjectError("REH001", message, hint, "trainer.max_steps")
    return RehearsalScript(compared, PARTS_BEFORE_SAVE * compared, PARTS * compared, max_steps)


def rehearsal_values(
    config: RunConfig, folder: Path, script: RehearsalScript, *, is_resumed: bool, is_last: bool = False
) -> dict[str, Any]:
    """Return the config keys that a rehearsal changes (output folder, intervals and more) and their values.

    `is_last`: the second resumed run, which saves no checkpoint.
    """
    saves_every = script.compared if is_resumed else script.saved
    batches = config.trainer.eval_max_batches or EVAL_BATCHES
    return {
        "trainer.output_dir": str(folder),
        "trainer.overwrite_output_dir": False,
        "trainer.resume_from_checkpoint": "auto" if is_resumed else "never",
        "trainer.continue_from": None,
        "trainer.save_steps": script.planned if is_last else saves_every,
        "trainer.save_total_limit": 0,
        "trainer.eval_steps": 0,
        "trainer.eval_max_batches": min(batches, EVAL_BATCHES),
        "trainer.logging_steps": max(1, script.compared // 2),
        "trainer.max_steps": script.planned,
        "trainer.max_epochs": None,  # the plan's estimate is in max_steps
        "trainer.batch_size_warmup_steps": 0,  # the time of whole steps is measured
        "trainer.sequence_length_warmup_percent": None,
        "trainer.sequence_length_warmup_steps": int(piece_length(config) is not None),
        "trainer.early_stopping_patience": None,
        "trainer.profile_steps": None,
        "trainer.memory_snapshot_step": None,
        "trackers": (),
        "plugins.hooks": (),  # they may notify people
        "wandb.enabled": False,
        "watchdog.heartbeat_interval_s": BEAT_S,
        "guard.on_degradation": "warn",  # ATT002 and PRF002 judge the measurements
        "distributed.nnodes": 1,
        "distributed.replicas": max(1, config.distributed.replicas // config.distributed.nnodes),
    }


def rehearsal_config(config: RunConfig, replaced: Mapping[str, Any]) -> RunConfig:
    """Return the config with the `replaced` keys, validated."""
    values = to_dict(config)
    for key, value in replaced.items():
        section, _, name = key.rpartition(".")
        (values[section] if section else values)[name] = value
    return from_dict(values)


def create_run_directory(config: RunConfig) -> Path:
    """Create the run directory with the resolved config and a receipt, and return its path."""
    folder = Path(config.trainer.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESOLVED).write_text(json.dumps(to_dict(config)), encoding="utf-8")
    write_receipt(_rehearsal_receipt(config), folder / RECEIPT)
    return folder


def copy_run_in_progress(run_dir: Path, target: Path) -> None:
    """Copy the directory of a run in progress, in the state after a crash. Checkpoints are hard-linked."""

    def copy(source: str, place: str) -> None:
        if CHECKPOINTS in Path(source).parts:
            with suppress(OSError):  # a file system without hard links
                os.link(source, place)
                return
        shutil.copy2(source, place)

    shutil.copytree(run_dir, target, symlinks=True, copy_function=copy)


def _rehearsal_receipt(config: RunConfig) -> Receipt:
    """Build a receipt without preflight checks, because the rehearsal is itself part of preflight."""
    now = utc_now()
    return Receipt(
        config_digest=digest(config),
        profile=config.profile or "",
        code_version=__version__,
        created_utc=now.isoformat(),
        expires_utc=(now + LIFETIME).isoformat(),
        verdict="unknown",
        levels=(),
        checks=(),
        waivers=(),
        hostname="",
        versions={},
        unguarded="a rehearsal",
    )
