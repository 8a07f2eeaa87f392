"""Interface of training objectives, and the static number of decoder rows of a packed microbatch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from neobert.families.backbone import Backbone


@dataclass(slots=True)
class ModuleWork:
    """Computation that uses the parameters of a module outside the module's forward, for FSDP2.

    Attributes:
        module: module whose parameters FSDP2 gathers before the computation, and whose gradients it reduces
            during the backward pass.
        function: the computation; compilation and sharding replace it.
    """

    module: nn.Module
    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        """Return the result of `function`."""
        return self.function(*arguments)

    def compile(self, backend: str) -> None:
        """Replace `function` by its compiled form for static shapes (see `compile_static`)."""
        self.function = compile_static(self.function, backend)


def compile_static(
    function: Callable[..., Any], backend: str, *, cuda_graphs: bool = False
) -> Callable[..., Any]:
    """Compile a function for static shapes into one graph; a graph break is an error.

    With `cuda_graphs`, forward and backward are captured as CUDA graphs and replayed: by Inductor with the
    kernels that it generates, by the backend `cudagraphs` with those of the function.
    """
    compiler = partial(torch.compile, backend=backend, dynamic=False, fullgraph=True)
    if cuda_graphs and backend == "inductor":
        return compiler(function, options={"triton.cudagraphs": True})
    return compiler(function)


class Objective(nn.Module, ABC):
    """Model and loss in one module.

    Its forward takes the keyword arguments from `Task.inputs` and returns the loss summed over targets, in
    fp32. The training loop divides by the number of targets of the whole step, over microbatches and ranks.

    Attributes:
        backbone: the model.
        capacity: static number of rows that the head gets per training microbatch; None: one per target.
        eval_capacity: the same for evaluation microbatches.
        attention_used: attention kernel that each transformer block used in training, by block number.
        has_cuda_graphs: whether a training step replays CUDA graphs.
    """

    backbone: Backbone
    capacity: int | None
    eval_capacity: int | None
    attention_used: dict[int, str]
    has_cuda_graphs: bool = False

    @abstractmethod
    def forward(self, num_targets: int, labels: Tensor, **inputs: Any) -> Tensor:
        """Return the summed loss of a microbatch; without targets, a zero that supports backward.

        `num_targets` is counted on the host to avoid a device sync.
        """

    @abstractmethod
    def evaluate(self, num_targets: int, labels: Tensor, **inputs: Any) -> Any:
        """Return the result of a microbatch for the task's `Metrics.add`, without gradients.

        Arguments as for `forward`.
        """

    @abstractmethod
    def units(self) -> list[nn.Module]:
        """Return the modules that FSDP2 shards as units (see `World.prepare`)."""

    def module_work(self) -> list[ModuleWork]:
        """Return the computations that use a module's parameters outside its forward (see `ModuleWork`)."""
        return []


MULTIPLE = 128
SPREAD = 6.0
"""Standard deviations above the expected number of targets; one microbatch in a billion has more."""


def max_targets(num_tokens: int, probability: float) -> int:
    """Return an upper bound on the targets among `num_tokens` tokens: mean plus 6 standard deviations."""
    expected = num_tokens * probability
    return min(num_tokens, ceil(expected + SPREAD * sqrt(expected * (1 - probability))))


def target_capacity(num_tokens: int, probability: float) -> int:
    """Return the static number of decoder rows for `num_tokens` tokens: `max_targets`, rounded up to 128."""
    return min(num_tokens, MULTIPLE * ceil(max_targets(num_tokens, probability) / MULTIPLE))


def num_decoder_rows(num_targets: int, capacity: int | None, num_tokens: int) -> int:
    """Return the number of decoder rows: the smallest multiple of `capacity` that fits `num_targets`.

    More targets than the capacity cause a recompilation; no target is dropped. Without a capacity there is
    one row per target. At most `num_tokens`.
    """
    if capacity is None:
        return num_targets
    return min(num_tokens, capacity * max(1, ceil(num_targets / capacity)))
