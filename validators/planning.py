"""Plan of a resolved run, on the device that its profile requires, or on the GPU that is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.families.table import requested_kernels
from neobert.plan import Assumptions, Measured, Plan, assumptions_for, build_plan
from neobert.plan.epochs import epoch_size
from neobert.plan.size import num_processes
from neobert.plan.vocabulary import tokenizer_size
from neobert.units import MIB_PER_GIB
from profiles.registry import Profile, ResolvedRun

if TYPE_CHECKING:
    from validators.facts_gpu import GpuFacts

DEFAULT_MFU = 0.3
DEFAULT_GPU = "A100"


def plan_run(
    run: ResolvedRun, measured: Measured | None = None, gpus: Sequence[GpuFacts] | None = None
) -> Plan:
    """Build the plan; `gpus` are those that were found, if the machine was probed.

    Raises ProjectError if the profile requires a GPU that is not in the table.
    """
    return build_plan(run.config, assumptions_of(run, gpus), measured)


def assumptions_of(run: ResolvedRun, gpus: Sequence[GpuFacts] | None = None) -> Assumptions:
    """Return the assumptions about the device; sizes of vocabulary and epoch from files on this machine."""
    tokenizer, epoch = tokenizer_size(run.config.tokenizer), epoch_size(run.config)
    return replace(_assumptions_of_device(run, gpus or ()), tokenizer=tokenizer, epoch=epoch)


def _assumptions_of_device(run: ResolvedRun, gpus: Sequence[GpuFacts]) -> Assumptions:
    """Return the device that the profile requires and its expected speed.

    A profile that names no GPU is planned for the one that was found; before that, at the speed of an A100,
    with unknown memory unless it is given. A run without a profile is planned for a CPU until a GPU is found.
    The source of the expectation lists the settings that it was not measured for.
    """
    if run.profile is None:
        return _as_found(gpus, DEFAULT_MFU) or assumptions_for(None, None, DEFAULT_MFU)
    expected = _as_expected(run.profile, gpus)
    caveats = "; ".join(_caveats(run.config, run.profile))
    return replace(expected, source=f"{expected.source} ({caveats})") if caveats else expected


def _caveats(config: RunConfig, profile: Profile) -> Iterator[str]:
    kernels, own_kernels = _kernels(config), _kernels(profile.config)
    if kernels != own_kernels:
        yield f"{profile.name} expects that for other kernels"
    size, own_size = num_processes(config), num_processes(profile.config)
    if size != own_size:
        yield f"{profile.name} expects it on {own_size} x {profile.requires.gpu or 'device'}, not on {size}"


def _kernels(config: RunConfig) -> tuple[object, ...]:
    return *requested_kernels(config), config.trainer.torch_compile


def _as_found(gpus: Sequence[GpuFacts], mfu: float) -> Assumptions | None:
    """Return what is assumed about the first GPU; None without any, or without its data sheet."""
    try:
        return assumptions_for(gpus[0].name, gpus[0].memory_total_mib / MIB_PER_GIB, mfu) if gpus else None
    except ProjectError:
        return None


def _as_expected(profile: Profile, gpus: Sequence[GpuFacts]) -> Assumptions:
    requires, mfu = profile.requires, profile.expects.mfu
    if requires.device == "cpu":
        return assumptions_for(None, requires.gpu_memory_gib, mfu)
    if requires.gpu is not None:
        return assumptions_for(requires.gpu, requires.gpu_memory_gib, mfu)
    any_gpu = assumptions_for(DEFAULT_GPU, requires.gpu_memory_gib, mfu)
    if requires.gpu_memory_gib is not None:
        return any_gpu
    return _as_found(gpus, mfu) or replace(any_gpu, device_memory_mib=None)
