"""Limits shared by several families of rules."""

from __future__ import annotations

MEMORY_SHARE = 0.9
"""Largest share of device memory for a run: allocators fragment, and some batches exceed the mean."""
