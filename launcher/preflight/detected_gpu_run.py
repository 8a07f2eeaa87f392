"""Run for the visible GPU, with the profile for this GPU or the closest profile, adapted to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neobert.errors import ProjectError
from neobert.families.table import initial_weights
from neobert.plan import find_card
from neobert.plurals import counted
from neobert.precision.recipe import BF16
from neobert.units import MIB_PER_GIB
from profiles.about import Requirements
from profiles.registry import Profile, ResolvedRun, list_profiles, load_profile, resolve_run
from validators.facts_gpu import GpuFacts
from validators.planning import plan_run
from validators.rules.gpu import mismatches
from validators.thresholds import MEMORY_SHARE

ANY_KERNELS = ("model.attn_backend=auto", "model.kernel_backend=auto")


@dataclass(frozen=True, slots=True)
class GpuRun:
    """Resolved run for the visible GPU. `note` names the GPU, the profile and changed keys."""

    resolved: ResolvedRun
    note: str


def run_for_gpus(gpus: Sequence[GpuFacts], overrides: Sequence[str]) -> GpuRun:
    """Resolve the profile that requires these GPUs, or adapt the closest production profile to the first GPU.

    Args:
        gpus: visible GPUs, at least one.
        overrides: command-line overrides, which take precedence over the adapted values.
    """
    profiles = [profile for profile in map(load_profile, list_profiles()) if _is_a_start(profile)]
    fitting = [profile for profile in profiles if _is_for(profile, gpus)]
    if not fitting:
        return _nearest(profiles, gpus[0], overrides)
    chosen = max(fitting, key=lambda profile: (profile.kind == "production", profile.requires.num_gpus))
    label = counted(chosen.requires.num_gpus, gpus[0].name)
    return GpuRun(resolve_run(chosen.name, (), overrides), f"{label}: profile {chosen.name}")


def _is_a_start(profile: Profile) -> bool:
    """Return whether a profile requires a named GPU, runs on one node and starts from random weights."""
    is_for_a_model = profile.requires.device == "cuda" and profile.requires.gpu is not None
    continues = initial_weights(profile.config) is not None
    return is_for_a_model and not continues and profile.config.distributed.nnodes == 1


def _is_for(profile: Profile, gpus: Sequence[GpuFacts]) -> bool:
    needed = profile.requires.num_gpus
    faults = [fault for gpu in gpus[:needed] for fault in mismatches(gpu, profile.requires)]
    return needed <= len(gpus) and not faults


def _nearest(profiles: Sequence[Profile], gpu: GpuFacts, overrides: Sequence[str]) -> GpuRun:
    production = [
        profile for profile in profiles if profile.kind == "production" and profile.requires.num_gpus == 1
    ]
    nearest = min(production, key=lambda profile: _distance(profile.requires, gpu))
    shape = _legal_shape(nearest, gpu)
    resolved = resolve_run(nearest.name, (), [*shape, *overrides])
    assert resolved.profile is not None
    adapted = replace(resolved, profile=resolved.profile._replace(requires=_requirements_met_by(gpu)))
    memory, capability = gpu.memory_total_mib / MIB_PER_GIB, ".".join(map(str, gpu.compute_capability))
    note = (
        f"{gpu.name} ({memory:.0f} GiB, compute capability {capability}): no profile requires this GPU; "
        f"validating the nearest, {nearest.name}, with {', '.join(shape)}"
    )
    return GpuRun(adapted, note)


def _distance(requires: Requirements, gpu: GpuFacts) -> tuple[bool, int, int, float]:
    """Return a sort key: difference in compute capability, which limits the kernels, then in memory."""
    major, minor = requires.min_compute_capability or BF16.min_capability
    own_major, own_minor = gpu.compute_capability
    apart_mib = abs((requires.gpu_memory_gib or 0) * MIB_PER_GIB - gpu.memory_total_mib)
    is_newer = (major, minor) > (own_major, own_minor)
    return is_newer, abs(major - own_major), abs(minor - own_minor), apart_mib


def _legal_shape(profile: Profile, gpu: GpuFacts) -> list[str]:
    """Return overrides of kernels, precision and microbatch size for this GPU."""
    precision = [] if gpu.compute_capability >= BF16.min_capability else ["trainer.mixed_precision=fp32"]
    trainer = profile.config.trainer
    rows, accumulation = trainer.per_device_train_batch_size, trainer.gradient_accumulation_steps
    while True:
        shape = [
            *ANY_KERNELS,
            *precision,
            f"trainer.per_device_train_batch_size={rows}",
            f"trainer.gradient_accumulation_steps={accumulation}",
        ]
        memory_mib = plan_run(resolve_run(profile.name, (), shape)).memory_mib.value
        if memory_mib <= MEMORY_SHARE * gpu.memory_total_mib or rows % 2:
            return shape
        rows, accumulation = rows // 2, accumulation * 2


def _requirements_met_by(gpu: GpuFacts) -> Requirements:
    return Requirements(
        gpu=_model_of(gpu),
        gpu_memory_gib=gpu.memory_total_mib / MIB_PER_GIB,
        min_compute_capability=gpu.compute_capability,
    )


def _model_of(gpu: GpuFacts) -> str | None:
    """Return the GPU's name in the table of data sheets, or None for a GPU that is not in the table."""
    try:
        return find_card(gpu.name).name
    except ProjectError:
        return None
