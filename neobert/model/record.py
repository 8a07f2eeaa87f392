"""Record of the attention kernel that each block ran. Copied into every checkpoint folder.

A kernel is noted where it is called. A traced graph does not call Python again, so it is noted at trace time,
and the graph then always runs this kernel. Blocks that share one graph are noted once, at the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

NOWHERE: dict[int, str] = {}
_notes = NOWHERE
_layer = 0


@contextmanager
def recording(kernels: dict[int, str]) -> Iterator[None]:
    """Write into kernels, by the number of the block, what runs or is traced inside."""
    global _notes
    outer, _notes = _notes, kernels
    try:
        yield
    finally:
        _notes = outer


@torch.compiler.assume_constant_result
def enter_layer(number: int) -> None:
    """Note which block runs next."""
    global _layer
    _layer = number


@torch.compiler.assume_constant_result
def note_kernel(name: str) -> None:
    """Note the attention kernel that the block runs."""
    # Outside of a recording nothing is written, so that an evaluation leaves the notes of training alone.
    if _notes is not NOWHERE:
        _notes[_layer] = name


def summarize(kernels: Mapping[int, str]) -> str | None:
    """Name the one kernel of all blocks, or each with its blocks (`sdpa: 3, torch_varlen: 0-2 4-27`).

    None where nothing has run.
    """
    names = sorted(set(kernels.values()))
    if len(names) < 2:
        return names[0] if names else None
    layers = {name: sorted(layer for layer in kernels if kernels[layer] == name) for name in names}
    return ", ".join(f"{name}: {_ranges(numbers)}" for name, numbers in layers.items())


def _ranges(numbers: list[int]) -> str:
    """Write rising numbers with their runs joined: 0-2 4."""
    starts = [number for number in numbers if number - 1 not in numbers]
    ends = [number for number in numbers if number + 1 not in numbers]
    return " ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
