"""The largest tensor that ranks send to each other."""

from __future__ import annotations

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestMessage(TorchDispatchMode):
    """Notes the most values of one tensor that a collective other than a sum leaves on this rank."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.namespace in ("c10d", "_c10d_functional") and "reduce" not in function.name():
            tensors = [each for each in tree_leaves((args, result)) if is_weight(each)]
            self.largest = max([self.largest, *(each.numel() for each in tensors)])
        return result


def is_weight(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
