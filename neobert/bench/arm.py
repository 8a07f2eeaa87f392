"""Benchmark process of one config (arm): `python -m neobert.bench.arm RESOLVED.json synthetic|own`.

It uses the trainer of a real run, without evaluation, checkpoints and metrics on disk. It reads requests from
standard input and is idle between them. Its files are written next to the config.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

import torch

from neobert.bench.device import device_name, measure_peak, package_versions
from neobert.bench.documents import synthesize_data
from neobert.config.schema import RunConfig
from neobert.data.store.prepare import prepare
from neobert.errors import EXIT_INTERRUPTED, EXIT_OK, ProjectError, write_error_file
from neobert.metric_names import TRAIN_LOSS
from neobert.plan.pieces import piece_length
from neobert.train import exit_process, read_config, unexpected_error
from neobert.training.guards.degradation import CompilationWatch
from neobert.training.loop.assembly import build_trainer, start_world
from neobert.training.loop.hooks import GarbageCollector, Hook, Stage, StepReport, collect_between_steps
from neobert.training.loop.session import peak_flops
from neobert.training.loop.signals import Signals
from neobert.training.loop.steps import run_hooks, run_step
from neobert.training.prepare_model import prepare_model
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.memory import allocator_fields, memory_fields
from neobert.training.telemetry.metrics import TrainingLog
from neobert.training.telemetry.stopwatch import PARTS

log = logging.getLogger("neobert.bench")

REPORTED = ("time/", "perf/data_wait", "perf/host_bound", TRAIN_LOSS)


def without_warm_up_phases(config: RunConfig) -> RunConfig:
    """Return the config without batch-size warm-up, and with one step of sequence-length warm-up, if any."""
    pieces = int(piece_length(config) is not None)  # one, so that the shape has slots for them
    trainer = replace(
        config.trainer,
        batch_size_warmup_steps=0,
        sequence_length_warmup_steps=pieces,
        sequence_length_warmup_percent=None,
    )
    return replace(config, trainer=trainer)


class Arm:
    """Trainer of one benchmarked config. Each public method that returns a dict is a request for `serve`."""

    def __init__(self, config: RunConfig, data: str, folder: Path) -> None:
        config = without_warm_up_phases(config)
        self._world = start_world(config)
        prepared = synthesize_data(config, folder) if data == "synthetic" else prepare(config)
        ready = prepare_model(config, prepared, self._world, is_fresh=True)
        self.trainer = build_trainer(config, folder, self._world, ready, Signals(), None)
        self._fingerprint = prepared.fingerprint
        self._rows: list[Mapping[str, Any]] = []
        self._collector = GarbageCollector()
        self._hooks = self._new_hooks()

    def describe(self) -> dict[str, Any]:
        """Return device, package versions, kernels, data fingerprint and data-sheet peak of this arm."""
        return {
            "device": device_name(self._world.device),
            "versions": package_versions(),
            "attention_kernel": self.trainer.task.backbone.attention,
            "compute_dtype": str(self._world.compute_dtype).removeprefix("torch."),
            "data_fingerprint": self._fingerprint,
            "nominal_flops_per_s": peak_flops(self.trainer),
        }

    def cold_peak(self) -> dict[str, Any]:
        """Return the peak FLOP/s of the device, measured before any training, by name."""
        return {"cold_peak_flops_per_s": self._measure_peak()}

    def warm_up(self, count: int) -> dict[str, Any]:
        """Run `count` warm-up steps, including compilation; return their seconds, not their metrics."""
        seconds = self._advance(count)
        # Once in a run, at its first logging step: collecting what compilation left takes half a second.
        self._collector(self.trainer, StepReport(self.trainer.progress.step, {}))
        self._rows.clear()
        self._hooks = self._new_hooks()
        return {"seconds": seconds}

    def turn(self, count: int) -> dict[str, Any]:
        """Run `count` steps; return their seconds, tokens and FLOPs, and the peak FLOP/s measured after them.

        The device is synchronized before the time is read.
        """
        progress, flops = self.trainer.progress, self.trainer.state.flops
        tokens = progress.tokens_total
        seconds = self._advance(count)
        return {
            "steps": count,
            "seconds": seconds,
            "tokens": progress.tokens_total - tokens,
            "flops": self.trainer.state.flops - flops,
            "peak_flops_per_s": self._measure_peak(),
        }

    def finish(self) -> dict[str, Any]:
        """Return mean metrics since the warm-up, memory use, and the number of recompiles."""
        self.trainer.guard.check()
        first = (self._rows or [{}])[0]
        names = [name for name, value in first.items() if name.startswith(REPORTED) and value is not None]
        means = {name: fmean(row[name] for row in self._rows) for name in names}
        return {
            "means": means,
            "parts_of_step": timed_share_of_step(means),
            "memory": memory_fields(self._world.device) | allocator_fields(self._world.device),
            "recompiles": self.trainer.state.recompiles,
        }

    @contextmanager
    def excluded_from_step_times(self) -> Iterator[None]:
        """Exclude the `with` block, in which another arm may run, from the step times."""
        with self.trainer.stopwatch.pause("rest"):
            yield

    def close(self) -> None:
        """Stop the prefetch threads."""
        self.trainer.batches.close()

    def _advance(self, count: int) -> float:
        """Run `count` steps with their hooks; return the seconds until the device has finished."""
        self._synchronize_device()
        started_s = time.perf_counter()
        for _ in range(count):
            run_step(self.trainer)
            run_hooks(self.trainer, self._hooks)
        self._synchronize_device()
        return time.perf_counter() - started_s

    def _new_hooks(self) -> list[Hook]:
        every = self.trainer.config.trainer.logging_steps
        watch = CompilationWatch(self.trainer.progress.step)
        return [
            Hook(
                name="logging",
                act=watch,
                stage=Stage.CHECK,
                every=int(self.trainer.config.trainer.torch_compile),
            ),
            Hook(name="garbage", act=self._collector, stage=Stage.CHECK, every=every),
            Hook(name="logging", act=TrainingLog(self.trainer, None), stage=Stage.MEASURE, every=every),
            Hook(name="logging", act=self._close_row, stage=Stage.RECORD, every=1),
        ]

    def _close_row(self, trainer: Trainer, report: StepReport) -> None:
        trainer.progress.row = None
        if len(report.metrics) > 1:
            self._rows.append(report.metrics)

    def _measure_peak(self) -> float:
        with self.excluded_from_step_times():
            return measure_peak(self._world.device, self._world.compute_dtype)

    def _synchronize_device(self) -> None:
        if self._world.is_on_gpu:
            torch.cuda.synchronize(self._world.device)


def timed_share_of_step(means: Mapping[str, float]) -> float | None:
    """Return the timed parts' share of the step time, or None if trainer.timing_breakdown is off."""
    names = [f"time/{name}_ms" for name in PARTS]
    if not means.keys() >= set(names):
        return None
    return sum(means[name] for name in names) / means["time/step_ms"]


def serve(arm: Arm, requests: TextIO, answers: TextIO) -> None:
    """Execute requests, one JSON line each, and write their results until the input ends."""
    with collect_between_steps():
        while line := wait_for_request(arm, requests):
            request = json.loads(line)
            answer = getattr(arm, request.pop("do"))(**request)
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def wait_for_request(arm: Arm, requests: TextIO) -> str:
    """Return the next request line, or an empty string at the end of the input."""
    with arm.excluded_from_step_times():
        return requests.readline()


def redirect_standard_output() -> TextIO:
    """Return a stream to standard output, and redirect file descriptor 1 to standard error.

    Output of compilers then cannot mix with the results.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def main(arguments: list[str]) -> int:
    """Build the arm and execute requests; return the exit code."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    answers = redirect_standard_output()
    try:
        path = Path(arguments[0])
        folder = path.with_suffix("")
        folder.mkdir()
        with closing(Arm(read_config(path), arguments[1], folder)) as arm:
            serve(arm, sys.stdin, answers)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except ProjectError as error:
        write_error_file(error)
        return error.exit_code
    except Exception as error:
        log.exception("the arm failed")
        reported = unexpected_error(error)
        write_error_file(reported)
        return reported.exit_code
    return EXIT_OK


if __name__ == "__main__":
    exit_process(main(sys.argv[1:]))
