"""Work that stands by itself in a step: among several ranks its gradients travel while more is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(slots=True)
class Region:
    """Work that reads the parameters of one module, whose own forward it does not go through.

    Attributes:
        module: what is gathered before the work and reduced after its backward.
        function: the work; compiling and sharding put another in its place.
    """

    module: nn.Module
    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        """Do the work."""
        return self.function(*arguments)

    def compile(self, backend: str) -> None:
        """Compile the work as one graph of static shapes."""
        self.function = compiled(self.function, backend)


def compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """Compile a function whose shapes stay, and refuse to break its graph."""
    return torch.compile(function, backend=backend, dynamic=False, fullgraph=True)
