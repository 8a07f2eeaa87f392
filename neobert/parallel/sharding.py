"""Sharding of parameters, gradients and optimizer state over the ranks (FSDP2), and gathering of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.utils import get_total_norm

from neobert.precision.recipe import Recipe


def shard(
    objective: Any,
    mesh: DeviceMesh,
    recipe: Recipe,
    *,
    overlaps_exchange: bool,
    reshards: bool,
    gathers_copies: bool = False,
) -> nn.Module:
    """Shard every parameter over the last dimension of a mesh with FSDP2, in place; return the objective.

    Args:
        objective: module whose `units` share no parameter. Its `module_work` are the computations that use a
            unit's parameters outside the unit's forward. Parameters outside all units form the root unit.
        recipe: types in which weights are gathered and gradients are reduced.
        overlaps_exchange: shard each unit separately, so that communication overlaps computation; else the
            whole objective is one unit, gathered before its forward and reduced after its backward.
        reshards: free a unit's parameters after its forward, and gather them again for its backward. Else
            they stay gathered in between, and each is gathered once per step. The root unit always stays
            gathered.
        gathers_copies: gather the linear layers of units in the recipe's type, to which autocast converts
            them anyway. The root unit and the norms are gathered in their own type.
    """
    units, works = (objective.units(), objective.module_work()) if overlaps_exchange else ([], [])
    unconverted = MixedPrecisionPolicy(None, _torch_dtype(recipe.reduced_dtype))
    converted = MixedPrecisionPolicy(
        _torch_dtype(recipe.gathered_dtype), _torch_dtype(recipe.reduced_dtype), cast_forward_inputs=False
    )
    norms = _unit_norms(units) if gathers_copies else []
    if norms:
        _gather_together(objective, norms)
        fully_shard(objective.norms, mesh=mesh, reshard_after_forward=False, mp_policy=unconverted)
    apart = {weight for norm in norms for weight in norm.parameters()}
    for unit in units:
        policy = converted if gathers_copies else unconverted
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshards, mp_policy=policy, ignored_params=apart)
    fully_shard(
        objective, mesh=mesh, reshard_after_forward=False, mp_policy=unconverted, ignored_params=apart
    )
    for work in works:
        work.function = _with_fsdp_hooks(work.module, work.function)
    register_fsdp_forward_method(objective, "evaluate")
    return objective


def _unit_norms(units: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the norms in units: modules whose own parameters are all vectors."""
    return [
        each
        for unit in units
        for each in unit.modules()
        if (own := list(each.parameters(recurse=False))) and all(weight.ndim == 1 for weight in own)
    ]


def _gather_together(objective: Any, norms: Sequence[nn.Module]) -> None:
    """Make the norms of all units one more unit, which is gathered before each call of the objective.

    Separate units would have hooks inside compiled blocks, where hooks cannot be compiled. The hooks of this
    unit never run, because nothing calls it: the root unit reduces its gradients at the end of a backward
    pass.
    """
    objective.norms = nn.Sequential(*norms)

    def gathering(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            objective.norms.unshard()
            return function(*arguments, **named)

        return call

    objective.forward, objective.evaluate = gathering(objective.forward), gathering(objective.evaluate)


def move_to_device(module: nn.Module, device: torch.device) -> None:
    """Move a sharded module to a device; parameters without memory get this rank's shards, uninitialized.

    Not `to_empty`, which would leave buffers uninitialized too.
    """

    def move_tensor(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)

    module._apply(move_tensor)


def copy_own_rows(parameter: Tensor, values: Tensor) -> None:
    """Copy this rank's rows of the full values into a parameter. Only these rows are read."""
    local_shard(parameter).copy_(values[own_row_slices(parameter)])


def own_row_slices(tensor: Tensor) -> tuple[slice, ...]:
    """Return the part of a full tensor that is this rank's shard: a slice for each dimension."""
    if not isinstance(tensor, DTensor):
        return (slice(None),) * tensor.ndim
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))


def _torch_dtype(name: str | None) -> torch.dtype | None:
    return None if name is None else getattr(torch, name)


def _with_fsdp_hooks(module: nn.Module, function: Any) -> Any:
    """Add the module's FSDP2 hooks to `function`: gather before it, reduce after its backward."""
    module.sharded_step = function
    register_fsdp_forward_method(module, "sharded_step")
    return module.sharded_step


def set_communication(module: FSDPModule, *, is_last: bool, reduces: bool) -> None:
    """Set what a microbatch communicates: gradients over shards and, after the last one, over replicas.

    `reduces`: reduce gradients over the shards and free gathered parameters.
    """
    module.set_is_last_backward(reduces)
    module.set_requires_gradient_sync(reduces)
    module.set_requires_all_reduce(is_last)
    module.set_reshard_after_backward(reduces)


@contextmanager
def free_gathered_parameters(module: nn.Module) -> Iterator[None]:
    """Free, after the `with` block, the parameters that it gathered and no backward pass frees."""
    try:
        yield
    finally:
        for unit in _fsdp_units(module):
            unit.reshard()


@contextmanager
def gather_parameters_outside_blocks(module: nn.Module, ends: Sequence[nn.Module]) -> Iterator[None]:
    """Gather the parameters outside the blocks, for calls of parts of the module inside the `with` block.

    All ranks must make the same calls: each block gathers its own parameters. `ends`: units that may be used
    without their forward.
    """
    with free_gathered_parameters(module):
        for unit in (module, *ends, getattr(module, "norms", None)):
            if isinstance(unit, FSDPModule):
                unit.unshard()
        yield


def _fsdp_units(module: nn.Module) -> list[FSDPModule]:
    return [each for each in module.modules() if isinstance(each, FSDPModule)]


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's local shard; a tensor that is not sharded is returned unchanged.

    A shard that is sent in another type (`Recipe.before_sharding`) is wrapped in a class around the stored
    tensor.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    part = tensor.to_local()
    return getattr(part, "_tensor", part)


def list_gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients of all parameters whose gradient is not None."""
    return [each.grad for each in parameters if each.grad is not None]


def total_norm(tensors: Sequence[Tensor], replicas: int) -> Tensor:
    """Return the total norm of sharded tensors, of which the ranks hold `replicas` copies.

    All ranks must call it. The squares are summed over all ranks: sums over the shards of each replica could
    differ in the last bit.
    """
    square = get_total_norm([local_shard(each) for each in tensors]).square()
    dist.all_reduce(square)
    return (square / replicas).sqrt()


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor; others are returned unchanged. All ranks must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Shard a tensor like `parameter`, on its device, without communication; scalars are not sharded.

    `tensor` must be equal on all ranks; only this rank's rows are read.
    """
    if parameter.is_meta:
        return tensor  # its rows are taken later, see `DeferredWeights`
    if not isinstance(parameter, DTensor) or tensor.ndim == 0:
        return tensor.to(parameter.device)
    part = tensor[own_row_slices(parameter)].to(parameter.device)
    mesh, placements = parameter.device_mesh, parameter.placements
    shape, stride = parameter.shape, parameter.stride()
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)
