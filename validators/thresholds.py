"""Limits that more than one family judges by."""

from __future__ import annotations

MEMORY_SHARE = 0.9
"""Share of a device that a run may fill: allocators fragment, and some batches are longer than the mean."""
