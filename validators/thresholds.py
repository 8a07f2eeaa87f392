"""Limits shared by several families of rules."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun

MEMORY_SHARE = 0.9
"""Maximum share of device memory for a run: allocators fragment, and some batches exceed the mean."""
LONG_GPU_STEPS = 5_000
"""Minimum steps of a GPU run that is judged like a production run, whatever its predicted duration."""


def is_long_on_gpu(run: ResolvedRun, plan: Plan) -> bool:
    """Return whether a run on a GPU has so many steps that it is judged like a production run."""
    return run.device == "cuda" and plan.max_steps.value >= LONG_GPU_STEPS
