"""`heartbeat_rank<k>.jsonl`: where this rank is, for whoever watches from outside."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from neobert.model.record import summarize
from neobert.training.journal import Journal
from neobert.training.memory import memory_fields
from neobert.training.trainer import Trainer


class Heartbeat:
    """Appends a line at every beat; `seq` goes on rising when a run is resumed.

    `unguarded` is why the run was started whatever its checks said; every line repeats it.
    """

    def __init__(self, journal: Journal, first_seq: int, unguarded: str = "") -> None:
        self._journal = journal
        self._seq = first_seq
        self._unguarded = unguarded

    def beat(self, trainer: Trainer, phase: str) -> None:
        """Write a line: start, train, eval, save, or how the run ended."""
        self._journal.append(self._line(trainer, phase))
        self._seq += 1

    def _line(self, trainer: Trainer, phase: str) -> dict[str, Any]:
        progress, reading, world = trainer.progress, trainer.reading, trainer.world
        unsaved_s = time.monotonic() - trainer.saved_at_s
        steps_left = trainer.max_steps - progress.step
        return {
            "ts_utc": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "seq": self._seq,
            "rank": world.rank,
            "phase": phase,
            "unguarded": self._unguarded or None,
            "step": progress.step,
            "max_steps": trainer.max_steps,
            "tokens_total": progress.tokens_total,
            "tokens_per_second": reading.tokens_per_second,
            "mfu": reading.mfu,
            "loss": reading.loss,
            "learning_rate": reading.learning_rate,
            "grad_norm": reading.grad_norm,
            **memory_fields(world.device),
            "attention_kernel": summarize(trainer.task.attention_ran),
            "compute_dtype": str(world.compute_dtype).removeprefix("torch."),
            "recompiles": trainer.recompiles,
            "data_wait_ms": reading.data_wait_ms,
            "last_checkpoint_step": progress.saved_step,
            "last_checkpoint_age_s": None if progress.saved_step is None else unsaved_s,
            "work_at_risk_min": unsaved_s / 60,
            "eta_s": None if reading.step_time_s is None else steps_left * reading.step_time_s,
        }
