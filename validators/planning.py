"""The plan of a resolved run, on the device that its profile requires."""

from __future__ import annotations

from dataclasses import replace

from neobert.plan import Assumptions, Measured, Plan, assumptions_for, build_plan
from profiles.registry import ResolvedRun

DEFAULT_MFU = 0.3
DEFAULT_GPU = "A100"


def plan_run(run: ResolvedRun, measured: Measured | None = None) -> Plan:
    """Build the plan. Raises ProjectError where the profile requires a GPU that the card table lacks."""
    return build_plan(run.config, assumptions_of(run), measured)


def assumptions_of(run: ResolvedRun) -> Assumptions:
    """Return what the profile requires and expects; a run without one is planned for a CPU.

    A profile that names no GPU is planned at the speed of an A100; memory that it does not name is unknown.
    """
    if run.profile is None:
        return assumptions_for(None, None, DEFAULT_MFU)
    requires, mfu = run.profile.requires, run.profile.expects.mfu
    if requires.device == "cpu":
        return assumptions_for(None, requires.gpu_memory_gib, mfu)
    if requires.gpu is not None:
        return assumptions_for(requires.gpu, requires.gpu_memory_gib, mfu)
    any_gpu = assumptions_for(DEFAULT_GPU, requires.gpu_memory_gib, mfu)
    return any_gpu if requires.gpu_memory_gib is not None else replace(any_gpu, device_memory_mib=None)
