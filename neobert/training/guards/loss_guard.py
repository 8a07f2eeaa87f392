"""NaN and loss-spike guard: ends a run before the optimizer applies a bad update.

The check runs on the device. On a GPU, the host reads the result only at logging steps, where it waits
anyway; until then `step_unless` skips every update from the bad step on. On a CPU, it is read every step.
"""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neobert.config.schema import GuardConfig
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.parallel import local_shard

log = logging.getLogger(__name__)

CODE, SPIKE_CODE = "NAN001", "SPK001"
NO_SPIKES = GuardConfig(loss_spike_factor=None)
# Weight of each loss in the mean: about the last fifty steps count.
WEIGHT = 0.04
# A smaller mean, in nats per target, counts as this. A fine-tuned model that has learned its labels has a
# loss of 0.001, and a single wrong one in a batch is a hundred times that without any divergence.
MIN_MEAN = 0.1


class FiniteGuard:
    """Check of loss and gradient norm for NaN, infinity and spikes; records the samples of a bad step.

    Attributes:
        mean_loss: running mean loss at the last check; None before the first loss.
    """

    def __init__(
        self,
        device: torch.device,
        report: Path,
        memory_steps: int,
        all_reduce_sum: Callable[[Tensor], Tensor] = lambda own: own,
        limits: GuardConfig = NO_SPIKES,
        reports: str = "",
    ) -> None:
        """Create a guard without a mean loss.

        Args:
            report: file to which the samples of a bad step are written.
            memory_steps: number of steps whose samples are kept on a GPU; at least the logging interval.
            all_reduce_sum: sums a tensor over all ranks, which may hold different shards of the weights.
            limits: loss-spike factor and reaction.
            reports: glob pattern of the report files of all ranks, for error messages, because the samples of
                any rank may be the cause. Empty with a single rank.
        """
        self._is_on_gpu = device.type == "cuda"
        self._report, self._reports = report, reports or report.name
        self._add_up = all_reduce_sum
        self._is_bad = torch.zeros((), dtype=torch.bool, device=device)
        self._bad_step = torch.zeros((), dtype=torch.int64, device=device)
        self._spikes = LossSpikeDetector(device, limits.loss_spike_factor)
        self.mean_loss: float | None = None
        self._stops_at_spikes = limits.on_loss_spike == "stop"
        self._recent: deque[dict[str, Any]] = deque(maxlen=memory_steps if self._is_on_gpu else 1)

    def resume(self, mean_loss: float | None) -> None:
        """Restore the mean loss from a checkpoint; None if the checkpoint has no mean loss."""
        if mean_loss is not None:
            self._spikes.resume(mean_loss)

    def remember(self, step: int, batches: Iterable[dict[str, Any]]) -> None:
        """Keep the sample descriptions of a step's microbatches, for the report."""
        self._recent.append({"step": step, "microbatches": list(batches)})

    def judge(self, step: int, loss: Tensor, grad_norm: Tensor) -> None:
        """Check loss and gradient norm of a step before its update. Both must be equal on all ranks.

        On a CPU, raises `ProjectError` for a bad step; on a GPU, `check` does.
        """
        is_bad = ~(torch.isfinite(loss) & torch.isfinite(grad_norm))
        is_spike = self._spikes.judge(step, loss)
        if self._stops_at_spikes:
            is_bad |= is_spike
        self._bad_step = torch.where(is_bad & ~self._is_bad, step, self._bad_step)
        self._is_bad = self._is_bad | is_bad
        if not self._is_on_gpu:
            self.check()

    @property
    def verdict(self) -> Tensor | None:
        """Return a bool tensor on the GPU, true after a bad step, or None on a CPU, where `judge` raises."""
        return self._is_bad if self._is_on_gpu else None

    def check(self) -> None:
        """Raise `ProjectError` NAN001 or SPK001 if a step was bad, and write its samples to the report.

        A loss spike that does not end the run is logged. Waits for the device.
        """
        spike, self.mean_loss = self._spikes.take()
        if spike is not None:
            path = self._report.with_name(_spike_name(self._report.name))
            self._write_report(path, spike.step, {"loss": spike.loss, "mean_loss": spike.mean})
            log.warning("step %d: loss spike to %.4g from a mean of %.4g, sample ids in %s", *spike, path)
        if not bool(self._is_bad):
            return
        step = int(self._bad_step)
        if spike is not None and spike.step == step:
            message = f"loss spike at step {step}: loss {spike.loss:.4g}, running mean {spike.mean:.4g}"
            raise _stop_error(step, message, str(path.with_name(_spike_name(self._reports))), SPIKE_CODE)
        self._write_report(self._report, step, {})
        reports = str(self._report.with_name(self._reports))
        raise _stop_error(step, f"the loss or the gradient of step {step} is not finite", reports)

    def check_weights(self, module: nn.Module, step: int) -> None:
        """Raise `ProjectError` NAN001 if a weight is NaN or infinite. Called before each save."""
        self.check()
        is_good = [local_shard(parameter).isfinite().all() for parameter in module.parameters()]
        if int(self._add_up((~torch.stack(is_good)).sum())):
            raise _stop_error(step, f"weights are not finite after step {step}, and were not saved", "")

    def _write_report(self, path: Path, step: int, details: dict[str, Any]) -> None:
        batches = next((each for each in self._recent if each["step"] == step), {"step": step})
        try:
            path.write_text(
                json.dumps(batches | details, default=lambda array: array.tolist()), encoding="utf-8"
            )
        except OSError as error:  # a full disk must not hide the error of the run
            log.warning("the samples of step %d could not be written: %s", step, error)


def _spike_name(name: str) -> str:
    return name.replace("nonfinite", "loss_spike")


def _stop_error(step: int, message: str, report: str, code: str = CODE) -> ProjectError:
    where = f"inspect the batch, whose sample ids are in {report}; " if report else ""
    return ProjectError(
        code=code,
        message=message,
        hint=f"{where}lower optimizer.lr, then resume: no earlier checkpoint is affected",
        place=f"step {step}",
        exit_code=EXIT_TRAINING_FAILED,
    )


class Spike(NamedTuple):
    """Step of a loss spike, its loss, and the mean loss before it, both in nats per target."""

    step: int
    loss: float
    mean: float


class LossSpikeDetector:
    """Running mean of the loss, and detection of losses far above it, on the device."""

    def __init__(self, device: torch.device, factor: float | None) -> None:
        """Create a detector. `factor`: ratio of loss to mean above which a loss is a spike; None: never."""
        self._factor = float("inf") if factor is None else factor
        self._mean = torch.full((), torch.nan, dtype=torch.float64, device=device)
        self._first = torch.zeros(3, dtype=torch.float64, device=device)

    def judge(self, step: int, loss: Tensor) -> Tensor:
        """Return a bool tensor on the device: whether a step's loss is a spike. Updates the mean.

        Spikes, NaN, infinity and the loss 0 of a step without targets do not change the mean.
        """
        loss = loss.to(torch.float64)
        has_loss = torch.isfinite(loss) & (loss > 0)
        is_spike = has_loss & (loss > self._factor * self._mean.clamp(min=MIN_MEAN))
        found = torch.stack([torch.full_like(loss, step), loss, self._mean])
        self._first = torch.where(is_spike & (self._first[0] == 0), found, self._first)
        moved = torch.where(self._mean.isnan(), loss, self._mean + WEIGHT * (loss - self._mean))
        self._mean = torch.where(has_loss & ~is_spike, moved, self._mean)
        return is_spike

    def resume(self, mean: float) -> None:
        """Restore the mean from a checkpoint; 0 means that there is none."""
        self._mean.fill_(mean if mean > 0 else math.nan)

    def take(self) -> tuple[Spike | None, float | None]:
        """Return the first spike since the last call and the mean loss, each None if there is none.

        Waits for the device.
        """
        step, loss, mean_before, mean = torch.cat([self._first, self._mean[None]]).tolist()
        known_mean = None if math.isnan(mean) else mean
        if step == 0:
            return None, known_mean
        self._first = torch.zeros_like(self._first)
        return Spike(int(step), loss, mean_before), known_mean
