"""Plan of a resolved run, for the device that its profile requires or for the installed GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from neobert.errors import ProjectError
from neobert.families.table import initial_weights, named_weights
from neobert.hub_names import is_hub_name, is_pinned
from neobert.plan import Assumptions, Measured, Plan, assumptions_for, build_plan
from neobert.plan.derived import EpochSize
from neobert.plan.epoch_size import epoch_size
from neobert.plan.remaining import find_start
from neobert.plan.vocabulary import tokenizer_size
from neobert.plurals import listed
from neobert.printable import printable
from neobert.units import MIB_PER_GIB
from profiles.registry import Profile, ResolvedRun
from validators.departures import keys_differing_from_profile

if TYPE_CHECKING:
    from validators.facts_gpu import GpuFacts
    from validators.facts_run import PreparedFacts

DEFAULT_MFU = 0.3
DEFAULT_GPU = "A100"
WEIGHTS = "model.pretrained_checkpoint"


def plan_run(
    run: ResolvedRun,
    measured: Measured | None = None,
    gpus: Sequence[GpuFacts] | None = None,
    prepared: PreparedFacts | None = None,
) -> Plan:
    """Build the plan of a run.

    Raises ProjectError if the required GPU is not in the table, or weights were not downloaded.

    Args:
        gpus: the visible GPUs; None if the machine was not probed.
        prepared: the prepared text; None if it was not counted.
    """
    assumptions = plan_assumptions(run, gpus)
    if prepared is not None and prepared.microbatches is not None:
        counted = EpochSize(prepared.microbatches, "counted in the prepared text", prepared.num_eval_tokens)
        assumptions = replace(assumptions, epoch=counted)
    try:
        return build_plan(run.config, assumptions, measured)
    except ProjectError as error:
        if error.place != WEIGHTS or not assumptions.hub_weights:
            raise
        message, hint = explain_missing_weights(run)
        raise ProjectError(error.code, message, hint, WEIGHTS) from error


def explain_missing_weights(run: ResolvedRun) -> tuple[str, str]:
    """Return the message and the hint for initial weights on the Hub that are not on this machine."""
    name, revision = printable(_weights_name(run)), printable(named_weights(run.config)[1])
    if is_pinned(name, revision):
        message = f"{name} at {revision[:12]} is not in the local Hub cache"
        command = f"hf download {name} --revision {revision}"
        return message, f"run `{command}`; neobert-launch train and preflight download {name} too"
    if revision:
        hint = f"set model.revision to a commit of {name}; `neobert-launch init --from {name}` writes the key"
        return f"model.revision {revision} is not a commit", hint
    pin = f"set model.revision to a commit; `neobert-launch init --from {name}` writes it"
    return f"{name} is not a folder here", f"if it is a name on the Hub, {pin}"


def plan_assumptions(run: ResolvedRun, gpus: Sequence[GpuFacts] | None = None) -> Assumptions:
    """Return the assumptions of the plan: the device, and what local files show of text and weights."""
    return replace(
        _device_assumptions(run, gpus or ()),
        tokenizer=tokenizer_size(run.config.tokenizer),
        epoch=epoch_size(run.config),
        start=find_start(run.config),
        hub_weights=_hub_weights(run),
    )


def _weights_name(run: ResolvedRun) -> str:
    """Return the initial weights as written in the run file: a Hub name, or a path relative to the file."""
    weights, revision = named_weights(run.config)
    if revision or not weights:
        return weights
    return os.path.relpath(weights, os.path.dirname(run.origin(WEIGHTS).file))


def _hub_weights(run: ResolvedRun) -> str:
    """Return the Hub name of initial weights that are not on this machine, or an empty string."""
    place = os.path.expanduser(initial_weights(run.config) or "")
    is_path = not named_weights(run.config)[1] and os.path.exists(os.path.dirname(place))
    name = _weights_name(run)
    return "" if is_path or os.path.exists(place) or not is_hub_name(name) else name


def _device_assumptions(run: ResolvedRun, gpus: Sequence[GpuFacts]) -> Assumptions:
    """Return the device that the profile requires and its expected speed.

    If the profile names no GPU, the plan is for the first visible GPU, or before probing for an A100, with
    unknown memory unless the profile sets it. A run without a profile is planned for the first visible GPU,
    or else for a CPU. `source` lists the keys for which the profile does not state the speed.
    """
    if run.profile is None:
        return _assumptions_for_visible_gpu(gpus, DEFAULT_MFU) or assumptions_for(None, None, DEFAULT_MFU)
    expected = _assumptions_for_profile(run.profile, gpus)
    caveat = _speed_caveat(run, run.profile)
    return replace(expected, source=f"{expected.source} ({caveat})") if caveat else expected


def _speed_caveat(run: ResolvedRun, profile: Profile) -> str:
    """Return a note on the keys for which the profile's speed does not hold; empty if there are none."""
    keys = listed(keys_differing_from_profile(run), most=3, separator="; ")
    if not keys:
        return ""
    if profile.expects.is_estimate:
        return f"{profile.name} states this MFU for {keys}"
    return f"{profile.name} was measured with {keys}: this speed is an estimate"


def _assumptions_for_visible_gpu(gpus: Sequence[GpuFacts], mfu: float) -> Assumptions | None:
    """Return the assumptions for the first visible GPU, or None if there is none, or none in the table."""
    try:
        return assumptions_for(gpus[0].name, gpus[0].memory_total_mib / MIB_PER_GIB, mfu) if gpus else None
    except ProjectError:
        return None


def _assumptions_for_profile(profile: Profile, gpus: Sequence[GpuFacts]) -> Assumptions:
    requires, mfu = profile.requires, profile.expects.mfu
    if requires.device == "cpu":
        return assumptions_for(None, requires.gpu_memory_gib, mfu)
    if requires.gpu is not None:
        return assumptions_for(requires.gpu, requires.gpu_memory_gib, mfu)
    any_gpu = assumptions_for(DEFAULT_GPU, requires.gpu_memory_gib, mfu)
    if requires.gpu_memory_gib is not None:
        return any_gpu
    return _assumptions_for_visible_gpu(gpus, mfu) or replace(any_gpu, device_memory_mib=None)
