"""NaN and loss-spike guard: ends a run before the optimizer applies a bad step.

The check runs on the device. On a CPU the host reads the result in every step; on a GPU only at logging
steps, where it waits anyway. Until then `step_unless` skips every update from the bad step on.
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
from neobert.parallel import own_part

log = logging.getLogger(__name__)

CODE, SPIKE_CODE = "NAN001", "SPK001"
NO_SPIKES = GuardConfig(loss_spike_factor=None)
# Of each loss in the mean: about the last fifty steps count.
WEIGHT = 0.04
# A smaller mean, in nats per target, counts as this. A fine-tuned model that has learned its labels has a
# loss of 0.001, and a single wrong one in a batch is a hundred times that without any divergence.
LEAST_MEAN = 0.1


class FiniteGuard:
    """Guard of loss and gradient norm, with the batches of the last steps.

    Attributes:
        mean_loss: running mean that spikes are compared with, at the last check; None before the first loss.
    """

    def __init__(
        self,
        device: torch.device,
        report: Path,
        memory_steps: int,
        add_up: Callable[[Tensor], Tensor] = lambda own: own,
        limits: GuardConfig = NO_SPIKES,
        reports: str = "",
    ) -> None:
        """Start without a loss.

        Args:
            add_up: sums a tensor over the ranks, each of which may hold another shard of the weights.
            reports: name pattern of the reports of all ranks, for errors: the loss is a sum over the ranks,
                so the batch may be of any of them. Empty: there is one rank.
        """
        self._is_on_gpu = device.type == "cuda"
        self._report, self._reports = report, reports or report.name
        self._add_up = add_up
        self._is_bad = torch.zeros((), dtype=torch.bool, device=device)
        self._bad_step = torch.zeros((), dtype=torch.int64, device=device)
        self._spikes = LossSpikeDetector(device, limits.loss_spike_factor)
        self.mean_loss: float | None = None
        self._stops_at_spikes = limits.on_loss_spike == "stop"
        self._recent: deque[dict[str, Any]] = deque(maxlen=memory_steps if self._is_on_gpu else 1)

    def resume(self, mean_loss: float | None) -> None:
        """Continue with the mean loss of an earlier session."""
        if mean_loss is not None:
            self._spikes.resume(mean_loss)

    def remember(self, step: int, batches: Iterable[dict[str, Any]]) -> None:
        """Keep the description of each microbatch of a step, which identifies its samples."""
        self._recent.append({"step": step, "microbatches": list(batches)})

    def judge(self, step: int, loss: Tensor, grad_norm: Tensor) -> None:
        """Check a step before its update. Loss and norm are equal on all ranks, and so is the verdict."""
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
        """Return whether any step so far was bad, on the device; None if the host has already checked."""
        return self._is_bad if self._is_on_gpu else None

    def check(self) -> None:
        """Raise `ProjectError` if a step was bad, and write its sample ids. Waits for the device."""
        spike, self.mean_loss = self._spikes.take()
        if spike is not None:
            path = self._report.with_name(_of_spike(self._report.name))
            self._write(path, spike.step, {"loss": spike.loss, "mean_loss": spike.mean})
            log.warning("step %d: loss spike of %.4g after a mean of %.4g, see %s", *spike, path)
        if not bool(self._is_bad):
            return
        step = int(self._bad_step)
        if spike is not None and spike.step == step:
            message = f"loss spike at step {step}: {spike.loss:.4g} after a mean of {spike.mean:.4g}"
            raise _stop(step, message, str(path.with_name(_of_spike(self._reports))), SPIKE_CODE)
        self._write(self._report, step, {})
        reports = str(self._report.with_name(self._reports))
        raise _stop(step, f"the loss or the gradient of step {step} is not finite", reports)

    def check_weights(self, module: nn.Module, step: int) -> None:
        """Raise `ProjectError` if a weight is NaN or infinite: it must not be saved."""
        self.check()
        is_good = [own_part(parameter).isfinite().all() for parameter in module.parameters()]
        if int(self._add_up((~torch.stack(is_good)).sum())):
            raise _stop(step, f"weights are not finite after step {step}, and were not saved", "")

    def _write(self, path: Path, step: int, details: dict[str, Any]) -> None:
        batches = next((each for each in self._recent if each["step"] == step), {"step": step})
        try:
            path.write_text(json.dumps(batches | details, default=_plain), encoding="utf-8")
        except OSError as error:  # a full disk must not hide the error of the run
            log.warning("the samples of step %d could not be written: %s", step, error)


def _of_spike(name: str) -> str:
    return name.replace("nonfinite", "loss_spike")


def _plain(array: Any) -> Any:
    return array.tolist()


def _stop(step: int, message: str, report: str, code: str = CODE) -> ProjectError:
    where = f"inspect the batch, whose sample ids are in {report}; " if report else ""
    return ProjectError(
        code=code,
        message=message,
        hint=f"{where}lower optimizer.lr, then resume: no earlier checkpoint is affected",
        place=f"step {step}",
        exit_code=EXIT_TRAINING_FAILED,
    )


class Spike(NamedTuple):
    """A step with a loss spike, and the mean loss before it, in nats per target."""

    step: int
    loss: float
    mean: float


class LossSpikeDetector:
    """The running mean loss, and the first spike since the last call of `take`."""

    def __init__(self, device: torch.device, factor: float | None) -> None:
        """`factor`: ratio of loss to mean above which it is a spike; None: never."""
        self._factor = float("inf") if factor is None else factor
        self._mean = torch.full((), torch.nan, dtype=torch.float64, device=device)
        self._first = torch.zeros(3, dtype=torch.float64, device=device)

    def judge(self, step: int, loss: Tensor) -> Tensor:
        """Return whether a step's loss is a spike. A spike, NaN or infinity does not change the mean.

        A loss of 0, which a step without targets has, does not either.
        """
        loss = loss.to(torch.float64)
        has_loss = torch.isfinite(loss) & (loss > 0)
        is_spike = has_loss & (loss > self._factor * self._mean.clamp(min=LEAST_MEAN))
        found = torch.stack([torch.full_like(loss, step), loss, self._mean])
        self._first = torch.where(is_spike & (self._first[0] == 0), found, self._first)
        moved = torch.where(self._mean.isnan(), loss, self._mean + WEIGHT * (loss - self._mean))
        self._mean = torch.where(has_loss & ~is_spike, moved, self._mean)
        return is_spike

    def resume(self, mean: float) -> None:
        """Continue with the mean of an earlier session; 0: there is none."""
        self._mean.fill_(mean if mean > 0 else math.nan)

    def take(self) -> tuple[Spike | None, float | None]:
        """Return the first spike since the last call, and the mean; each may be None. Waits for the GPU."""
        step, loss, mean_before, mean = torch.cat([self._first, self._mean[None]]).tolist()
        known_mean = None if math.isnan(mean) else mean
        if step == 0:
            return None, known_mean
        self._first = torch.zeros_like(self._first)
        return Spike(int(step), loss, mean_before), known_mean
