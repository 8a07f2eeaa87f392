"""Hooks that observe the uninterrupted run and the resumed runs of a rehearsal, and record each step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch

from neobert.bench.device import device_name, gpu_uuid
from neobert.data.store.prepare import prepare
from neobert.rehearsal.answers import all_answers
from neobert.rehearsal.measurements import (
    describe_attention,
    describe_worst_case,
    gpu_context_mib,
    has_mask_with_packing,
    measure_evaluation,
    measure_speed,
    parameter_types,
    record_product_flops,
    train_eval_overlap,
)
from neobert.rehearsal.parent import ParentChannel
from neobert.rehearsal.script import RehearsalScript
from neobert.rehearsal.trace import Trace, draw_from_generators, state_digests
from neobert.rehearsal.trials import (
    WorstCase,
    accumulation_error,
    overfit,
    wait_for_checkpoint,
)
from neobert.runfiles.phases import SAVE
from neobert.runfiles.run_dir import METRICS, heartbeat_path
from neobert.training.loop.hooks import Hook, StepReport
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.jsonl_writer import read_rows
from neobert.training.telemetry.memory import memory_fields
from neobert.units import BYTES_PER_MIB


@dataclass
class UninterruptedRunObserver:
    """Observer of the uninterrupted run; collects results in `seen`."""

    script: RehearsalScript
    parent: ParentChannel
    seen: dict[str, Any] = field(default_factory=dict)
    allocated: list[int] = field(default_factory=list)

    def attach(self, trainer: Trainer) -> Sequence[Hook]:
        """Run the worst-case microbatch (with the largest memory need); return the hook for every step."""
        device = trainer.world.device
        self.seen |= {"device": device.type, "device_name": device_name(device)}
        self.parent.report_stage("running the worst-case microbatch")
        self.worst = WorstCase(trainer)
        self.seen["worst_case"] = describe_worst_case(self.worst)
        self.worst.step(trainer)
        self.parent.wait_for_graphs(trainer)
        self.worst.run(trainer)
        self.parent.wait_until_alone(trainer)
        with record_product_flops() as flops:
            self.worst.run(trainer)
        types = parameter_types(trainer.task.model)
        self.seen["precision"] = {"parameters": types, "product_flops": dict(flops)}
        self.seen["has_mask_with_packing"] = has_mask_with_packing(trainer)
        if trainer.world.is_on_gpu:
            self.context_mib, self.seen["is_own_context"] = gpu_context_mib(device)
        self.trace = Trace(trainer)
        return [Hook(name="rehearsal", act=self.observe, every=1)]

    def observe(self, trainer: Trainer, _report: StepReport) -> None:
        """Record a step; after the last step, call `conclude`."""
        step, script = trainer.progress.step, self.script
        if step % script.compared == 0:
            self.parent.report_stage(f"step {step} of {script.total}")
        self.trace.record_step(trainer)
        if trainer.world.is_on_gpu:
            self.allocated.append(torch.cuda.memory_allocated(trainer.world.device))
        if step == script.saved:
            self.saved_at_s = time.monotonic()
            self.trace.start()
            self.seen["state"] = state_digests(trainer)
        if step == script.total:
            self.conclude(trainer)

    def conclude(self, trainer: Trainer) -> None:
        """Collect metrics, memory and trial results, report them to the parent, and wait to be killed."""
        wait_for_checkpoint(trainer.checkpoints / str(self.script.saved))
        self.seen["save_s"] = trainer.phases.longest_s.get(SAVE, time.monotonic() - self.saved_at_s)
        rows = read_rows(trainer.run_dir / METRICS)
        beats = read_rows(heartbeat_path(trainer.run_dir, trainer.world.rank))
        self.seen |= {
            "trace": self.trace.lines(),
            "speed": measure_speed(trainer, rows, self.script) if trainer.world.is_main else None,
            "evaluation": measure_evaluation(trainer, rows, beats),
            "attention": describe_attention(trainer, self.seen.pop("has_mask_with_packing")),
            "beats": beats[-1:],
        }
        stats = torch.cuda.memory_stats(trainer.world.device) if trainer.world.is_on_gpu else {}
        retries = int(stats.get("num_alloc_retries", 0))
        self.parent.report_stage("running the worst-case microbatch with the optimizer state in memory")
        self.worst.run(trainer)
        self.seen["memory"] = self._memory(trainer, retries)
        self.seen |= self._own_memory(trainer)
        self.parent.pause(trainer, self.seen)
        if trainer.world.is_main:
            self.seen["overlap"] = train_eval_overlap(prepare(trainer.config))
        self.parent.report_stage("comparing accumulated gradients")
        self.seen["accumulation"] = accumulation_error(trainer)
        self.parent.report_stage("overfitting one microbatch")
        losses, num_classes = overfit(trainer), trainer.task.num_classes
        initial = self.seen["trace"][0]["loss"]
        self.seen["learning"] = {"vocab_size": num_classes, "initial_loss": initial, "overfit": losses}
        self.parent.report_stage("testing predictions with known answers")
        answers = all_answers(trainer, self.worst.train)
        self.seen["answers"] = [answer._asdict() for answer in answers]
        self.parent.finish(trainer, self.seen)

    def _memory(self, trainer: Trainer, retries: int) -> dict[str, Any] | None:
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

    def _own_memory(self, trainer: Trainer) -> dict[str, Any]:
        """Return process id, GPU and the heartbeat's memory fields, to be compared with NVML and the OS."""
        device = trainer.world.device
        is_on_gpu = trainer.world.is_on_gpu
        if is_on_gpu:
            torch.cuda.synchronize(device)
        return {
            "pid": psutil.Process().pid,
            "gpu_uuid": gpu_uuid(device) if is_on_gpu else "",
            "reading": memory_fields(device),
        }


@dataclass
class ResumedRunObserver:
    """Observer of a resumed run, for the steps that are compared with the uninterrupted run.

    Attributes:
        is_last: True for the second resume, which saves no checkpoint.
    """

    script: RehearsalScript
    parent: ParentChannel
    is_last: bool = False
    seen: dict[str, Any] = field(default_factory=dict)

    def attach(self, trainer: Trainer) -> Sequence[Hook]:
        """Record digests of the restored state; return the hook for every step."""
        self.start = trainer.progress.step
        self.parent.report_stage(f"resumed at step {self.start}")
        self.seen |= {"start": self.start, "state": state_digests(trainer)}
        draw_from_generators()  # as the uninterrupted run did between its save and its next step
        if trainer.config.trainer.torch_compile:
            WorstCase(trainer).step(trainer)  # compilers draw numbers too; it ends before an evaluation
        self.trace = Trace(trainer)
        self.trace.start()
        return [Hook(name="rehearsal", act=self.observe, every=1)]

    def observe(self, trainer: Trainer, _report: StepReport) -> None:
        """Record a step; after the last compared step, wait for its checkpoint (if any) and report."""
        step = trainer.progress.step
        if step == self.start:
            return
        self.trace.record_step(trainer)
        if step == self.start + self.script.compared:
            self.seen["trace"] = self.trace.lines()
            if not self.is_last:
                self.seen["state_at_end"] = state_digests(trainer)
                wait_for_checkpoint(trainer.checkpoints / str(step))
            self.parent.finish(trainer, self.seen)
