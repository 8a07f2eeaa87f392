"""Stops a run whose loss or gradient is no number, before the optimizer has touched a weight.

The verdict is formed on the device. A CPU is asked at every step; a GPU only where the host waits for it
anyway, and until then the fused optimizer skips every update from the bad step on: the weights stay good.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.parallel import own_part

CODE = "NAN001"


class FiniteGuard:
    """Remembers the batches of the last steps, and whether one of them was bad."""

    def __init__(
        self,
        device: torch.device,
        report: Path,
        memory_steps: int,
        add_up: Callable[[Tensor], Tensor] = lambda own: own,
    ) -> None:
        """`add_up` adds a tensor up over the ranks, each of which may have another part of the weights."""
        self._is_on_gpu = device.type == "cuda"
        self._report = report
        self._add_up = add_up
        self._is_bad = torch.zeros((), dtype=torch.bool, device=device)
        self._bad_step = torch.zeros((), dtype=torch.int64, device=device)
        self._recent: deque[dict[str, Any]] = deque(maxlen=memory_steps if self._is_on_gpu else 1)

    def remember(self, step: int, batches: Iterable[dict[str, Any]]) -> None:
        """Note what a step is made of: for each microbatch, words and arrays that find its samples again."""
        self._recent.append({"step": step, "microbatches": list(batches)})

    def judge(self, step: int, loss: Tensor, grad_norm: Tensor, optimizer: Optimizer) -> None:
        """Judge a step before its update. Both numbers are the same on all ranks, and so is the verdict."""
        is_bad = ~(torch.isfinite(loss) & torch.isfinite(grad_norm))
        self._bad_step = torch.where(is_bad & ~self._is_bad, step, self._bad_step)
        self._is_bad = self._is_bad | is_bad
        if self._is_on_gpu:
            optimizer.found_inf = self._is_bad.to(torch.float32)
        else:
            self.check()

    def check(self) -> None:
        """Raise `ProjectError` where a step was bad; its sample ids go to a file. Waits for the device."""
        if not bool(self._is_bad):
            return
        step = int(self._bad_step)
        batches = next((each for each in self._recent if each["step"] == step), {"step": step})
        self._report.write_text(json.dumps(batches, default=_plain), encoding="utf-8")
        raise _stop(step, f"the loss or the gradient of step {step} is not finite", str(self._report))

    def check_weights(self, module: nn.Module, step: int) -> None:
        """Raise `ProjectError` where a weight is no number: such a checkpoint must not exist."""
        self.check()
        is_good = [own_part(parameter).isfinite().all() for parameter in module.parameters()]
        if int(self._add_up((~torch.stack(is_good)).sum())):
            raise _stop(step, f"weights are not finite after step {step}, and were not saved", "")


def _plain(array: Any) -> Any:
    return array.tolist()


def _stop(step: int, message: str, report: str) -> ProjectError:
    where = f"the batch's sample ids are in {report}; " if report else ""
    return ProjectError(
        code=CODE,
        message=message,
        hint=f"{where}the last checkpoint is good: lower optimizer.lr or look at those samples, then resume",
        place=f"step {step}",
        exit_code=EXIT_TRAINING_FAILED,
    )
