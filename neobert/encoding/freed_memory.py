"""Return of freed tensor memory to the system: with tensors of many lengths, glibc would keep it."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import torch

MMAP_THRESHOLD, MAPPED_BYTES = -3, 8 << 20
"""glibc's M_MMAP_THRESHOLD, and this project's value: larger allocations are mappings of their own, which
are returned when freed. By default, glibc raises the threshold to the largest allocation that was freed:
a batch of long texts then moves the tensors of all later ones into the heap, which they split.
"""
OTHER_LIBRARY = (AttributeError, OSError, TypeError)
"""Exceptions if the C library is not glibc, which then manages freed memory itself."""


def map_large_tensors() -> None:
    """Return tensors of 8 MiB and more to the system when they are freed."""
    with suppress(*OTHER_LIBRARY):
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, MAPPED_BYTES)


def return_freed_memory(device: torch.device) -> None:
    """Return free heap pages to the system if the tensors were on the CPU."""
    if device.type == "cpu":
        with suppress(*OTHER_LIBRARY):
            ctypes.CDLL(None).malloc_trim(0)
