"""The plan of a resolved run, on the device that its profile requires."""

from __future__ import annotations

from neobert.plan import Assumptions, Measured, Plan, assumptions_for, build_plan
from profiles.registry import ResolvedRun

DEFAULT_MFU = 0.3


def plan_run(run: ResolvedRun, measured: Measured | None = None) -> Plan:
    """Build the plan. Raises ProjectError where the profile requires a GPU that the card table lacks."""
    return build_plan(run.config, assumptions_of(run), measured)


def assumptions_of(run: ResolvedRun) -> Assumptions:
    """Return what the profile requires and expects; a run without one is planned for a CPU."""
    if run.profile is None:
        return assumptions_for(None, None, DEFAULT_MFU)
    requires = run.profile.requires
    gpu = (requires.gpu or "A100") if requires.device == "cuda" else None
    return assumptions_for(gpu, requires.gpu_memory_gib, run.profile.expects.mfu)
