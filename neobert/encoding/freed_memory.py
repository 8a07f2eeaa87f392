"""Return of freed tensor memory to the system: with tensors of many lengths, glibc would keep it."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import torch

MMAP_THRESHOLD, MAPPED_BYTES = -3, 8 << 20
"""glibc's option M_MMAP_THRESHOLD, and its value in bytes: memory of this size or more is mapped separately,
and returned to the system when freed. By default, glibc raises the threshold to the largest freed mapping, so
that after a batch of long texts, all tensors would be allocated in the heap and fragment it.
"""
OTHER_LIBRARY = (AttributeError, OSError, TypeError)
"""Errors of a call of glibc's functions in another C library, whose allocator keeps its defaults."""


def map_large_tensors() -> None:
    """Let tensors of 8 MiB and more return to the system when they are freed; no effect without glibc."""
    with suppress(*OTHER_LIBRARY):
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, MAPPED_BYTES)


def return_freed_memory(device: torch.device) -> None:
    """Return free heap pages to the system if `device` is the CPU; no effect without glibc."""
    if device.type == "cpu":
        with suppress(*OTHER_LIBRARY):
            ctypes.CDLL(None).malloc_trim(0)
