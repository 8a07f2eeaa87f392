"""The largest message that ranks send to each other."""

from contextlib import ExitStack
from threading import Thread
from typing import Self
from unittest import mock

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestMessage:
    """Notes the most values that a collective other than a sum leaves on this rank.

    It counts in this thread, and in those that are started inside the `with` block: a save is written by one.
    """

    def __init__(self) -> None:
        self.largest = 0

    def __enter__(self) -> Self:
        real = Thread.run

        def run(thread: Thread) -> None:
            with _Messages(self):
                real(thread)

        self._inside = ExitStack()
        self._inside.enter_context(_Messages(self))
        self._inside.enter_context(mock.patch.object(Thread, "run", run))
        return self

    def __exit__(self, *_: object) -> None:
        self._inside.close()


class _Messages(TorchDispatchMode):
    def __init__(self, noted: LargestMessage) -> None:
        super().__init__()
        self._noted = noted

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.namespace in ("c10d", "_c10d_functional") and "reduce" not in function.name():
            returned = result if isinstance(result, tuple | list) else (result,)
            sizes = (values_in(each) for each in (*args, *returned))  # a list is one message
            self._noted.largest = max([self._noted.largest, *sizes])
        return result


def values_in(tree: object) -> int:
    tensors = (each for each in tree_leaves(tree) if isinstance(each, Tensor))
    return sum(each.numel() for each in tensors if each.is_floating_point())
