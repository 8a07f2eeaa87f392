"""Freed memory of tensors of many lengths, which glibc would keep for other allocations."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import torch

MMAP_THRESHOLD, MAPPED_BYTES = -3, 8 << 20
"""glibc's number of the size from which an allocation is a mapping of its own, which is returned when it is
freed, and this project's value. By itself glibc raises that size to the largest allocation that was freed:
a batch of long texts then moves the tensors of all later ones into the heap, which they split.
"""
OTHER_LIBRARY = (AttributeError, OSError, TypeError)
"""Raised where the C library is not glibc; memory is then left to it."""


def map_large_tensors() -> None:
    """Return tensors of 8 MiB and more to the system when they are freed."""
    with suppress(*OTHER_LIBRARY):
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, MAPPED_BYTES)


def return_freed_memory(device: torch.device) -> None:
    """Return the free pages of the heap to the system, where tensors of the CPU were in them."""
    if device.type == "cpu":
        with suppress(*OTHER_LIBRARY):
            ctypes.CDLL(None).malloc_trim(0)
