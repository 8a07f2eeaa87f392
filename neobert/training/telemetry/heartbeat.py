"""`heartbeat_rank<k>.jsonl`: phase, progress and warnings of a rank, read by the launcher's watchdog."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from neobert.clock import boot_id, seconds_since_boot
from neobert.errors import write_error_file
from neobert.model.attention import summarize_kernels
from neobert.plan.pace import num_evaluations_after
from neobert.runfiles.attempt import is_replaced, replaced_error
from neobert.runfiles.phases import PhaseTracker
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.jsonl_writer import JsonlWriter
from neobert.training.telemetry.memory import gpu_fields, memory_fields, peak_percent

log = logging.getLogger(__name__)

Line = dict[str, Any]

# At one line per ten seconds this is a day, or two with the rotated file.
LIMIT_BYTES = 8 * 2**20
SCHEMA_VERSION = 1
# A loop that is not stuck notices within a step that another launch has taken over the run.
LEAVE_S = 30.0
# None in beats before the first one of the training thread.
TRAINER_FIELDS = (
    *("max_steps", "tokens_total", "tokens_per_second", "mfu", "loss", "learning_rate", "grad_norm"),
    *(*gpu_fields(None, None, None), "host_rss_mib", "gpu_mem_peak_percent"),
    *("attention_kernel", "compute_dtype", "recompiles", "kernel_fallbacks", "read_retries"),
    *("warnings", "warning_messages", "data_wait_ms", "data_wait_p50_ms", "data_wait_p95_ms", "eta_s", "nsa"),
)


class Heartbeat:
    """Writer of a rank's heartbeat file; `seq` keeps increasing when a run is resumed.

    Every line repeats the digest of the config that was checked, and `unguarded`, the reason for starting the
    run despite failed checks.
    """

    def __init__(
        self,
        path: Path,
        rank: int,
        phases: PhaseTracker,
        first_seq: int,
        unguarded: str = "",
        config_digest: str = "",
    ) -> None:
        self._writer, self._run_dir = JsonlWriter(path, LIMIT_BYTES), path.parent
        self._rank, self._phases, self._seq = rank, phases, first_seq
        self._unguarded, self._config_digest = unguarded, config_digest
        self._trainer: Trainer | None = None
        self._fields: Line = dict.fromkeys(TRAINER_FIELDS)
        self._writing = threading.Lock()
        self._is_over = threading.Event()

    @contextmanager
    def repeat_every(self, interval_s: float) -> Iterator[None]:
        """Repeat the last heartbeat at this interval inside the `with` block.

        If a later launch takes over the run, the file is left to it, and the process ends.
        """
        thread = threading.Thread(
            target=self._repeat_heartbeat, args=(interval_s,), name="heartbeat", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()
            self._writer.close()

    def beat(self, trainer: Trainer, phase: str) -> None:
        """Enter a phase, or record the end of the run, and append a line with all fields."""
        self._phases.enter(phase, trainer.progress.step)
        self._trainer, self._fields = trainer, _trainer_fields(trainer)
        self._append()

    def _repeat_heartbeat(self, interval_s: float) -> None:
        self._append()
        while not self._is_over.wait(interval_s):
            if is_replaced(self._run_dir):
                self._exit_if_still_running()
                return
            self._append()

    def _exit_if_still_running(self) -> None:
        """End the process of a replaced launch if its loop does not.

        After the loss of a node, gloo may wait for the other ranks until its timeout of half an hour.
        """
        if not self._is_over.wait(LEAVE_S):
            error = replaced_error(self._run_dir)
            log.error("%s", error)
            write_error_file(error)
            os._exit(error.exit_code)

    def _append(self) -> None:
        """Append a line. An `OSError` is only logged: writing metrics or a checkpoint would raise it."""
        with self._writing:
            try:
                self._writer.append(self._build_line())
            except OSError as error:
                log.warning("the heartbeat could not be written: %s", error)
            else:
                self._seq += 1

    def _build_line(self) -> Line:
        last = self._phases.last
        return {
            "schema_version": SCHEMA_VERSION,
            "config_digest": self._config_digest or None,
            "ts_utc": _to_utc(time.time()),
            "boot_id": boot_id() or None,
            "boot_s": round(seconds_since_boot(), 3),
            "seq": self._seq,
            "rank": self._rank,
            "phase": last.phase,
            "phase_doing": self._phases.doing or None,
            "phase_done": self._phases.parts[0],
            "phase_total": self._phases.parts[1],
            "unguarded": self._unguarded or None,
            "step": last.step,
            "last_progress_step": last.step,
            "last_progress_ts_utc": _to_utc(last.at_s),
            "phase_longest_s": {name: round(took_s, 3) for name, took_s in self._phases.longest_s.items()},
            **self._fields,
            **_work_at_risk(self._trainer),
        }


def _trainer_fields(trainer: Trainer) -> Line:
    """Return the heartbeat fields named in `TRAINER_FIELDS`. Only the training thread may call this."""
    progress, world = trainer.progress, trainer.world
    values = {
        "max_steps": trainer.max_steps,
        "tokens_total": progress.tokens_total,
        **asdict(trainer.state.last_metrics),
        **memory_fields(world.device),
        "gpu_mem_peak_percent": peak_percent(world.device),
        "attention_kernel": summarize_kernels(trainer.task.attention_used),
        "compute_dtype": str(world.compute_dtype).removeprefix("torch."),
        "recompiles": trainer.state.recompiles,
        "kernel_fallbacks": trainer.state.kernel_fallbacks,
        "read_retries": trainer.state.read_retries,
        "warnings": dict(trainer.state.warnings),
        "warning_messages": dict(trainer.state.warning_messages),
        "eta_s": _eta_s(trainer),
    }
    return {name: values[name] for name in TRAINER_FIELDS}


def _eta_s(trainer: Trainer) -> float | None:
    """Estimate the remaining seconds of training and, after the first evaluation, of evaluations.

    None before the step time is known.
    """
    step, step_time_s = trainer.progress.step, trainer.state.last_metrics.smoothed_step_time_s
    if step_time_s is None:
        return None
    last, every = trainer.max_steps, trainer.config.trainer.eval_steps
    evaluations_s = num_evaluations_after(step, last, every) * trainer.state.evaluation_s
    return (last - step) * step_time_s + evaluations_s


def _work_at_risk(trainer: Trainer | None) -> Line:
    if trainer is None:
        return dict.fromkeys(("last_checkpoint_step", "last_checkpoint_age_s", "work_at_risk_min"))
    unsaved_s, saved_step = time.monotonic() - trainer.state.saved_at_s, trainer.progress.saved_step
    return {
        "last_checkpoint_step": saved_step,
        "last_checkpoint_age_s": None if saved_step is None else unsaved_s,
        "work_at_risk_min": unsaved_s / 60,
    }


def _to_utc(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
