"""Limits shared by several families of rules."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun

MEMORY_SHARE = 0.9
"""Largest share of device memory for a run: allocators fragment, and some batches exceed the mean."""
LONG_GPU_STEPS = 5_000
"""Steps of a GPU run from which precision and saving are as in production, whatever time is predicted."""


def is_long_on_gpu(run: ResolvedRun, plan: Plan) -> bool:
    """Return whether a run of any profile has so many GPU steps that its faults cost as in production."""
    return run.device == "cuda" and plan.max_steps.value >= LONG_GPU_STEPS
