"""Interface of an objective, the module that the loop trains.

The number of rows that the decoder gets in a packed microbatch is static, so that nothing recompiles.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, sqrt
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(slots=True)
class ModuleWork:
    """Computation with the parameters of one module outside that module's forward, for FSDP2.

    Attributes:
        module: its parameters are gathered before the computation, and its gradients reduced during the rest
            of the backward pass.
        function: the computation; compiling and sharding replace it.
    """

    module: nn.Module
    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        return self.function(*arguments)

    def compile(self, backend: str) -> None:
        """Compile the function as one graph of static shapes."""
        self.function = compiled(self.function, backend)


def compiled(function: Callable[..., Any], backend: str, *, cuda_graphs: bool = False) -> Callable[..., Any]:
    """Compile a function of static shapes into one graph; a graph break is an error.

    With `cuda_graphs`, Inductor records its kernels once, forward and backward, and replays them: the host
    starts one graph instead of hundreds of kernels.
    """
    compiler = partial(torch.compile, backend=backend, dynamic=False, fullgraph=True)
    return compiler(function, options={"triton.cudagraphs": True}) if cuda_graphs else compiler(function)


class Objective(nn.Module, ABC):
    """Model and loss in one module.

    Its forward takes the arguments that `Task.inputs` returns, and returns the loss summed over targets in
    fp32. The loop divides by the number of targets of the whole step, over microbatches and ranks.

    Attributes:
        capacity: rows that the head gets in every training microbatch; None: as many as there are targets.
        eval_capacity: the same for an evaluation.
        attention_ran: the attention kernel that each block of the training step ran, by its number.
        has_cuda_graphs: whether a training step replays CUDA graphs.
    """

    capacity: int | None
    eval_capacity: int | None
    attention_ran: dict[int, str]
    has_cuda_graphs: bool = False

    @abstractmethod
    def forward(self, num_targets: int, labels: Tensor, **inputs: Any) -> Tensor:
        """Return the summed loss of a microbatch; without any target, zero with its graph intact.

        `num_targets` is counted on the host, to avoid a device sync.
        """

    @abstractmethod
    def evaluate(self, num_targets: int, labels: Tensor, **inputs: Any) -> Any:
        """Return the terms that the task's metrics add up.

        Arguments as for `forward`; no gradient is kept.
        """

    @abstractmethod
    def units(self) -> list[nn.Module]:
        """Return the modules that FSDP2 shards as units (see `World.prepare`)."""

    def module_work(self) -> list[ModuleWork]:
        """Return the functions that read a module's parameters outside its forward (see `ModuleWork`)."""
        return []


MULTIPLE = 128
SPREAD = 6.0
"""Standard deviations of room above the expected targets: one microbatch in a billion needs more."""


def most_targets(num_tokens: int, probability: float) -> int:
    """Return an upper bound on the targets among T tokens, each a target with this probability."""
    expected = num_tokens * probability
    return min(num_tokens, ceil(expected + SPREAD * sqrt(expected * (1 - probability))))


def target_capacity(num_tokens: int, probability: float) -> int:
    """Return the rows that the decoder gets for T tokens, each a target with this probability."""
    return min(num_tokens, MULTIPLE * ceil(most_targets(num_tokens, probability) / MULTIPLE))


def rows_for(num_targets: int, capacity: int | None, num_tokens: int) -> int:
    """Return the decoder rows for this many targets: the smallest multiple of the capacity that fits them.

    More targets than the capacity cost one more compilation; no target is ever dropped. Without a capacity
    there is one row per target.
    """
    if capacity is None:
        return num_targets
    return min(num_tokens, capacity * max(1, ceil(num_targets / capacity)))
