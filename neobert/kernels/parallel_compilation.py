"""Compilation of Triton kernels in several threads, before their first launch."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 16
"""Triton compiles another kernel for a pointer that is not a multiple of this."""


@contextmanager
def compile_without_running() -> Iterator[None]:
    """Compile the Triton kernels that the `with` block launches, all at the same time, and run none of them.

    Their results are uninitialized memory, so nothing in the block may depend on values. Without this, each
    kernel is compiled at its first launch, one after another.
    """
    from triton.runtime.jit import JITFunction

    launch, pending = JITFunction.run, dict[Hashable, Future[Any]]()

    def compile_later(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        def compile_kernel() -> object:
            # The attribute compiles and loads the C function that launches the kernel.
            return launch(kernel, *arguments, grid=grid, warmup=True, **options).run

        key = (kernel.fn, _specialization(arguments), *options, _specialization(options.values()))
        if key not in pending:
            pending[key] = pool.submit(compile_kernel)

    device = torch.cuda.current_device()
    with ThreadPoolExecutor(
        len(os.sched_getaffinity(0)), initializer=torch.cuda.set_device, initargs=(device,)
    ) as pool:
        JITFunction.run = compile_later
        try:
            yield
        finally:
            JITFunction.run = launch
    for each in pending.values():
        each.result()


def _specialization(arguments: Iterable[Any]) -> tuple[Hashable, ...]:
    """Return a key that is equal only for arguments that Triton compiles to the same kernel."""
    return tuple(map(_specialization_key, arguments))


def _specialization_key(argument: Any) -> Hashable:
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % ALIGNMENT == 0
    if hasattr(argument, "block_shape"):  # a tensor descriptor
        return argument.base.dtype, *argument.block_shape
    value: Hashable = argument
    return value
