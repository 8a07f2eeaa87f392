"""Profile of one step of `transformers.Trainer`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from transformers import TrainerCallback

from peers.kernels import Kernel, profiling


class Profiled(TrainerCallback):
    """Profiles one step after those that compile."""

    def __init__(self, after: int) -> None:
        self._after = after
        self.kernels: list[Kernel] = []
        self._stack = ExitStack()

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step == self._after:
            self.kernels = self._stack.enter_context(profiling())

    def on_step_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self._stack.close()
