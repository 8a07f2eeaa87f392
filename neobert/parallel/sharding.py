"""Sharding of parameters, gradients and optimizer state over the ranks (FSDP2), and their gathering."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import get_total_norm


def shard(objective: Any, num_ranks: int, device: torch.device, *, overlaps_exchange: bool) -> nn.Module:
    """Shard every parameter over the ranks, in place; parameters outside all units belong to the root module.

    A unit's parameters stay gathered from its forward to the end of its backward: a model of this size fits,
    and each parameter is gathered once per step. Gathering and reduction are in fp32, as with replicas.

    Args:
        objective: module whose `units` share no parameter, and whose `module_work` is the work that reads the
            parameters of a unit without going through its forward.
        overlaps_exchange: whether units are gathered and reduced while others compute; else the objective is
            the only unit, gathered before its forward and reduced after its backward.
    """
    mesh = init_device_mesh(device.type, (num_ranks,))
    units, works = (objective.units(), objective.module_work()) if overlaps_exchange else ([], [])
    for unit in [*units, objective]:
        fully_shard(unit, mesh=mesh, reshard_after_forward=False)
    for work in works:
        work.function = _between_hooks(work.module, work.function)
    register_fsdp_forward_method(objective, "evaluate")
    return objective


def _between_hooks(module: nn.Module, function: Any) -> Any:
    """Run a function as if it were the module's forward: gathered before, reduced after its backward."""
    module.sharded_step = function
    register_fsdp_forward_method(module, "sharded_step")
    return module.sharded_step


def hold_back(module: FSDPModule, *, is_last: bool) -> None:
    """Reduce gradients and reshard only after the last microbatch of a step, to save communication."""
    module.set_is_last_backward(is_last)
    module.set_requires_gradient_sync(is_last)
    module.set_reshard_after_backward(is_last)


@contextmanager
def whole(module: nn.Module) -> Iterator[None]:
    """Gather every parameter for a block in which ranks may call the module different numbers of times."""
    units = [each for each in module.modules() if isinstance(each, FSDPModule)]
    for unit in units:
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.reshard()


def own_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor; a tensor that is not sharded itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gradients_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients of those parameters that have one."""
    return [each.grad for each in parameters if each.grad is not None]


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the norm of all tensors, of which each rank holds a shard. All ranks call it."""
    square = get_total_norm([own_part(each) for each in tensors]).square()
    dist.all_reduce(square)
    return square.sqrt()


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the whole of a sharded tensor. All ranks call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return this rank's shard of a replicated tensor, sharded like the parameter. No communication."""
    tensor = tensor.to(parameter.device)
    if not isinstance(parameter, DTensor) or tensor.ndim == 0:
        return tensor
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)


def full_state(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """Return the model's whole tensors on the CPU; with `keep` false, only take part in the gathering."""
    state = {}
    for name, tensor in model.state_dict().items():
        tensor = full_tensor(tensor.detach())
        if keep:
            state[name] = tensor.cpu()
    return state


@torch.no_grad()
def load_full_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy whole tensors, which every rank has, into the model's shards, strictly."""
    parts = {name: part_like(state[name], own) for name, own in model.state_dict().items() if name in state}
    model.load_state_dict({**state, **parts})
