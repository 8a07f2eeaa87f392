"""Triton kernels compiled at the same time, with a stand-in for Triton's launcher."""

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from neobert.kernels.parallel_compilation import compile_without_running

BOTH = threading.Barrier(2, timeout=60)


class JITFunction:
    """Counts its compilations and launches; two of them are compiled at the same time, or not at all."""

    def __init__(self, fn: str) -> None:
        self.fn, self.compiled, self.launched = fn, 0, 0

    def run(self, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        self.launched += not warmup
        if warmup:
            BOTH.wait()
            self.compiled += 1
        if self.fn == "broken":
            raise ValueError("no such layout")
        return SimpleNamespace(run=None)


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    jit = ModuleType("triton.runtime.jit")
    monkeypatch.setattr(jit, "JITFunction", JITFunction, raising=False)
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "triton.runtime", ModuleType("triton.runtime"))
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", jit)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)


def launch(kernel: JITFunction, x: Any, size: int) -> None:
    kernel.run(x, size, grid=(1,), warmup=False, BLOCK=64)


def test_each_kernel_is_compiled_once_for_its_arguments_and_none_runs() -> None:
    forward, backward = JITFunction("forward"), JITFunction("backward")
    with compile_without_running():
        launch(forward, torch.zeros(8), 8)
        launch(forward, torch.ones(16), 8)  # as Triton sees it, the same
        launch(backward, torch.zeros(8), 8)
    assert (forward.compiled, backward.compiled) == (1, 1)
    assert (forward.launched, backward.launched) == (0, 0)
    launch(forward, torch.zeros(8), 8)
    assert forward.launched == 1, "the launcher is restored"


def test_a_descriptor_is_compiled_for_its_type_and_block() -> None:
    kernel = JITFunction("products")

    def describe(rows: int, block: list[int], dtype: torch.dtype = torch.bfloat16) -> SimpleNamespace:
        return SimpleNamespace(base=torch.zeros(rows, 64, dtype=dtype), block_shape=block)

    with compile_without_running():
        for argument in (
            describe(8, [16, 64]),
            describe(9, [16, 64]),  # as Triton sees it, the same
            describe(8, [32, 64]),
        ):
            launch(kernel, argument, 8)
    assert kernel.compiled == 2
    with compile_without_running():
        launch(kernel, describe(8, [16, 64]), 8)
        launch(kernel, describe(8, [16, 64], torch.float32), 8)
    assert kernel.compiled == 4


@pytest.mark.parametrize("other", [torch.zeros(8, dtype=torch.bfloat16), torch.zeros(9)[1:]])
def test_a_kernel_is_compiled_for_each_type_and_alignment(other: torch.Tensor) -> None:
    kernel = JITFunction("forward")
    with compile_without_running():
        launch(kernel, torch.zeros(8), 8)
        launch(kernel, other, 8)
    assert kernel.compiled == 2


def test_the_error_of_a_compilation_is_raised() -> None:
    def launch_both() -> None:
        with compile_without_running():
            launch(JITFunction("broken"), torch.zeros(8), 8)
            launch(JITFunction("forward"), torch.zeros(8), 8)

    with pytest.raises(ValueError, match="no such layout"):
        launch_both()
