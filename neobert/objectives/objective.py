"""The interface of an objective: the module that the loop trains and others look into."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from neobert.objectives.module_work import ModuleWork


class Objective(nn.Module, ABC):
    """Model and loss in one module.

    Its forward takes what `Task.inputs` returns and gives a loss summed over targets, fp32: the loop divides
    by the number of targets of the whole step, over microbatches and ranks.

    Attributes:
        capacity: rows that the head gets in every training microbatch; None: as many as there are targets.
        eval_capacity: the same for an evaluation.
        attention_ran: the attention kernel that each block of the training step ran, by its number.
    """

    capacity: int | None
    eval_capacity: int | None
    attention_ran: dict[int, str]

    @abstractmethod
    def forward(self, num_targets: int, labels: Tensor, **inputs: Any) -> Tensor:
        """Return the summed loss of a microbatch; without any target, zero with its graph intact.

        `num_targets` was counted on the host, so that no device is waited for.
        """

    @abstractmethod
    def evaluate(self, num_targets: int, labels: Tensor, **inputs: Any) -> Any:
        """Return what the task's metrics add up. Arguments as for `forward`; no gradient is kept."""

    @abstractmethod
    def units(self) -> list[nn.Module]:
        """Return the modules whose parameters are needed together and belong to no other: see `World`."""

    def module_work(self) -> list[ModuleWork]:
        """Return the work that does not go through the forward of the module whose parameters it reads."""
        return []
