"""Memory rule: a model that is too large for one device, and the sharding with which it fits."""

from __future__ import annotations

from dataclasses import replace

from neobert.config.schema import RunConfig
from neobert.plan import Plan, build_plan
from neobert.plan.size import num_processes
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.thresholds import MEMORY_SHARE

OF_ONE_NODE = (2, 4, 8)
"""Processes of a node among which a hint looks for a number that fits."""


def device_is_unknown(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why rules about the memory of a device do not apply."""
    return "the memory of the device is unknown" if plan.device_memory_mib.value is None else ""


def fits(config: RunConfig, plan: Plan) -> bool:
    """Return whether a config is predicted to fit on the plan's device."""
    device = plan.device_memory_mib.value
    return device is None or build_plan(config, plan.assumptions).memory_mib.value <= MEMORY_SHARE * device


def state_mib(plan: Plan) -> float:
    """Return the memory of weights, gradients and moments on one device."""
    return plan.weights_mib.value + plan.gradients_mib.value + plan.optimizer_mib.value


def is_too_large(plan: Plan) -> bool:
    """Return whether the state alone exceeds the device, whatever the microbatch."""
    device = plan.device_memory_mib.value
    return device is not None and state_mib(plan) > MEMORY_SHARE * device


def as_sharded(config: RunConfig, ranks: int) -> RunConfig:
    """Return the config with its model sharded over `ranks` processes, freed as the plan chooses."""
    sharing = replace(config.distributed, mode="fsdp2", replicas=1, reshard_after_forward=None)
    if ranks != num_processes(config):
        sharing = replace(sharing, nproc_per_node=ranks, nnodes=1)
    return replace(config, distributed=sharing)


def sharding_hint(config: RunConfig, sharded: RunConfig) -> str:
    """Return the edits that lead from a config to the same one with a sharded model."""
    before, after = config.distributed, sharded.distributed
    edits = []
    if before.mode != after.mode:
        edits.append(f"distributed.mode to {after.mode}")
    if before.replicas != after.replicas:
        edits.append("distributed.replicas to 1")
    if before.reshard_after_forward is False:
        edits.append("distributed.reshard_after_forward to null")
    if before.nproc_per_node != after.nproc_per_node:
        edits.append(f"distributed.nproc_per_node to {after.nproc_per_node}")
    return f"set {' and '.join(edits)}"


@rule(
    "MEM005",
    "model-beyond-device",
    severity=Severity.FAIL,
    level=Level.STATIC,
    inapplicable=device_is_unknown,
)
def model_beyond_device(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A model whose weights, gradients and moments alone exceed the memory of a device.

    ## What it does
    Adds up what each device holds of weights, their gathered and converted copies, gradients and moments.
    Fails if the sum exceeds 90 % of the device memory, and names the mode and the number of processes with
    which the model fits.

    ## Why is this bad?
    No microbatch is small enough for such a run. With `distributed.mode: replicated`, each GPU holds the
    whole model and its moments: 16 bytes per parameter with AdamW, and 2 more in bf16. With `fsdp2`, it holds
    its shards, and one gathered block at a time.

    ## Example
    ```yaml
    distributed:
      nproc_per_node: 4
      mode: replicated
    ```

    ## Use instead
    ```yaml
    distributed:
      nproc_per_node: 4
      mode: fsdp2
    ```
    """
    device, sharing = plan.device_memory_mib.value, run.config.distributed
    world = plan.world_size.value
    if device is None or not is_too_large(plan):
        return
    is_sharded = world > 1 and sharing.mode == "fsdp2"
    how = f"sharded over {world} ranks" if is_sharded else "whole on each device"
    message = (
        f"weights, gradients and moments of {plan.num_parameters.value:,} parameters, {how}, "
        f"need {state_mib(plan):,.0f} of {device:,.0f} MiB"
    )
    several = [world, *(ranks for ranks in OF_ONE_NODE if ranks > world and sharing.nnodes == 1)]
    candidates = (as_sharded(run.config, ranks) for ranks in several if ranks > 1)
    fitting = (each for each in candidates if not is_too_large(build_plan(each, plan.assumptions)))
    sharded = next(fitting, None)
    hint = "use a smaller model, or more nodes" if sharded is None else sharding_hint(run.config, sharded)
    keeps_all = is_sharded and sharing.reshard_after_forward is False
    path = "distributed.reshard_after_forward" if keeps_all else "distributed.mode"
    yield Violation(path, message, hint)
