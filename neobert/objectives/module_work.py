"""Parts of a step whose gradients are exchanged between ranks while the rest of the backward pass runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(slots=True)
class ModuleWork:
    """Work with the parameters of one module that does not call the forward of that module.

    Attributes:
        module: its parameters are gathered before the work and its gradients reduced after the backward pass.
        function: the work; compiling and sharding replace it.
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
