"""The unbroken run: the worst batch, the first steps, what they took, and trials that end it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch

from neobert.bench.surroundings import device_name, gpu_uuid
from neobert.data.store.prepare import prepare
from neobert.families.table import shape_of
from neobert.rehearsal.footprint import context_of
from neobert.rehearsal.overlap import train_eval_overlap
from neobert.rehearsal.products import parameter_types, recording_products
from neobert.rehearsal.script import Script
from neobert.rehearsal.trace import Trace, state_digests
from neobert.rehearsal.trials import (
    WorstCase,
    accumulation_error,
    first_batches,
    overfit,
    wait_for_checkpoint,
)
from neobert.runfiles.phases import SAVE
from neobert.training.loop.hooks import Hook, StepReport
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.jsonl_writer import read_rows
from neobert.training.telemetry.memory import BYTES_PER_MIB, memory_fields
from neobert.training.telemetry.metrics import LOSS
from neobert.training.telemetry.truncation import METRICS, heartbeat_path

Finish = Callable[[Trainer, dict[str, Any]], None]
Say = Callable[[str], None]


@dataclass
class Fresh:
    """Follows a run from its first step. `finish` gets what was seen, and does not return to the run."""

    script: Script
    finish: Finish
    say: Say
    seen: dict[str, Any] = field(default_factory=dict)
    allocated: list[int] = field(default_factory=list)

    def attach(self, trainer: Trainer) -> Sequence[Hook]:
        """Try the worst batch before the first step, and look at every step from then on."""
        device = trainer.world.device
        self.seen |= {"device": device.type, "device_name": device_name(device)}
        self.say("trying the worst batch")
        self.worst = WorstCase(trainer)
        self.seen["worst_case"] = describe(self.worst)
        self.worst.run(trainer)
        with recording_products() as flops:
            self.worst.run(trainer)
        types = parameter_types(trainer.task.model)
        self.seen["precision"] = {"parameters": types, "product_flops": dict(flops)}
        self.seen["has_mask_with_packing"] = has_mask_with_packing(trainer)
        if trainer.world.is_on_gpu:
            self.context_mib, self.seen["is_own_context"] = context_of(device)
        self.trace = Trace(trainer)
        return [Hook(name="rehearsal", act=self.look, every=1)]

    def look(self, trainer: Trainer, _report: StepReport) -> None:
        """Note a step; at the last one, hand over."""
        step, script = trainer.progress.step, self.script
        if step % script.compared == 0:
            self.say(f"step {step} of {script.total}")
        self.trace.note(trainer)
        if trainer.world.is_on_gpu:
            self.allocated.append(torch.cuda.memory_allocated(trainer.world.device))
        if step == script.saved:
            self.saved_at_s = time.monotonic()
            self.trace.start()
            self.seen["state"] = state_digests(trainer)
        if step == script.total:
            self.conclude(trainer)

    def conclude(self, trainer: Trainer) -> None:
        """Read what the run said of itself, then do what ends it."""
        self.seen["save_s"] = self._save_s(trainer)
        rows = read_rows(trainer.run_dir / METRICS)
        beats = read_rows(heartbeat_path(trainer.run_dir, trainer.world.rank))
        self.seen |= {
            "trace": self.trace.lines(),
            "speed": speed_of(trainer, rows, self.script) if trainer.world.is_main else None,
            "evaluation": evaluation_of(trainer, rows, beats),
            "attention": attention_of(trainer, self.seen.pop("has_mask_with_packing")),
            "overlap": train_eval_overlap(prepare(trainer.config)) if trainer.world.is_main else None,
            "beats": beats[-1:],
        }
        retries = self._retries(trainer)
        self.say("trying the worst batch beside the optimizer's state")
        self.worst.run(trainer)
        self.seen["memory"] = self._memory(trainer, retries)
        self.say("comparing accumulated gradients")
        self.seen["accumulation"] = accumulation_error(trainer)
        self.say("overfitting one batch")
        losses, num_classes = overfit(trainer), trainer.task.num_classes
        initial = self.seen["trace"][0]["loss"]
        self.seen["learning"] = {"vocab_size": num_classes, "initial_loss": initial, "overfit": losses}
        self.seen |= self._self_portrait(trainer)
        self.finish(trainer, self.seen)

    def _save_s(self, trainer: Trainer) -> float:
        """Wait until the save has ended, so that the run is not killed during it; return its duration."""
        wait_for_checkpoint(trainer.checkpoints / str(self.script.saved))
        return trainer.pulse.longest_s.get(SAVE, time.monotonic() - self.saved_at_s)

    def _retries(self, trainer: Trainer) -> int | None:
        if not trainer.world.is_on_gpu:
            return None
        return int(torch.cuda.memory_stats(trainer.world.device).get("num_alloc_retries", 0))

    def _memory(self, trainer: Trainer, retries: int | None) -> dict[str, Any] | None:
        device, script = trainer.world.device, self.script
        if not trainer.world.is_on_gpu:
            return None
        first, last = self.allocated[script.warm_up - 1], self.allocated[script.saved - 2]
        steps = script.saved - 1 - script.warm_up
        return {
            "total_mib": torch.cuda.get_device_properties(device).total_memory // BYTES_PER_MIB,
            "context_mib": self.context_mib,
            "peak_allocated_mib": torch.cuda.max_memory_allocated(device) // BYTES_PER_MIB,
            "peak_reserved_mib": torch.cuda.max_memory_reserved(device) // BYTES_PER_MIB,
            "alloc_retries": retries,
            "growth_mib_per_step": (last - first) / BYTES_PER_MIB / max(1, steps),
        }

    def _self_portrait(self, trainer: Trainer) -> dict[str, Any]:
        """Say what the process holds at this moment, as a heartbeat would; somebody outside compares."""
        device = trainer.world.device
        is_on_gpu = trainer.world.is_on_gpu
        if is_on_gpu:
            torch.cuda.synchronize(device)
        return {
            "pid": psutil.Process().pid,
            "gpu_uuid": gpu_uuid(device) if is_on_gpu else "",
            "reading": memory_fields(device),
        }


def describe(worst: WorstCase) -> dict[str, Any]:
    """Say how much the worst batches hold."""
    train, evaluation = worst.train, worst.evaluation
    return {
        "num_tokens": train.num_tokens,
        "longest": train.max_seqlen,
        "num_segments": train.num_segments,
        "num_targets": train.num_targets,
        "num_eval_tokens": None if evaluation is None else evaluation.num_tokens,
    }


def has_mask_with_packing(trainer: Trainer) -> bool | None:
    """Tell whether a packed microbatch comes with a mask of two dimensions; None for padded rows."""
    inputs = trainer.task.inputs(first_batches(trainer, 1)[0], trainer.world.device)
    return None if inputs.get("cu_seqlens") is None else inputs.get("attention_mask") is not None


def speed_of(trainer: Trainer, rows: Sequence[dict[str, Any]], script: Script) -> dict[str, Any] | None:
    """Return the mean pace between warm-up and the first save, and each line's step time in order."""
    lines = [row for row in rows if LOSS in row and script.warm_up < row["step"] <= script.saved]
    if not lines:
        return None
    times_s = [row["time/step_ms"] / 1000 for row in lines]
    step_time_s = sum(times_s) / len(times_s)
    tokens = sum(row["train/tokens_per_sec"] * time_s for row, time_s in zip(lines, times_s, strict=True))
    mfus = [row["perf/mfu"] for row in lines]
    return {
        "step_time_s": step_time_s,
        "tokens_per_second": tokens / len(lines) / step_time_s,
        "mfu": None if None in mfus else math.fsum(mfus) / len(mfus),
        "data_wait_share": sum(row["perf/data_wait_share"] for row in lines) / len(lines),
        "line_step_times_s": times_s,
        "recompiles": trainer.state.recompiles,
    }


def evaluation_of(
    trainer: Trainer, rows: Sequence[dict[str, Any]], beats: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Say whether the run evaluated before it trained, and what came of it."""
    first = next((row for row in rows if row["step"] == 0), {})
    return {
        "is_configured": trainer.task.evaluation is not None,
        "was_announced": any(beat["phase"] == "eval" and beat["step"] == 0 for beat in beats),
        "loss": first.get("eval/loss"),
    }


def attention_of(trainer: Trainer, has_mask: bool | None) -> dict[str, Any]:
    """Name the kernel that was resolved, and the one that each block ran."""
    ran = trainer.task.attention_ran
    layers = shape_of(trainer.config, trainer.task.model.config.vocab_size).num_layers
    return {
        "resolved": trainer.task.attention_kernel,
        "ran": [ran.get(layer, "") for layer in range(layers)],
        "has_mask_with_packing": has_mask,
    }
