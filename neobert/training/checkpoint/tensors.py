"""Optimizer and RNG state as named tensors, and their snapshot in host memory.

Nothing is pickled. On a GPU the snapshot is copied to pinned memory on a separate CUDA stream and overlaps
the next forward and backward; only the next optimizer step waits for it, on the device.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.optim import Optimizer

from neobert.config.removed_keys import removal_hint
from neobert.errors import ProjectError
from neobert.printable import printable
from neobert.runfiles.checkpoint.refusal import CODE

# Version 0.2.0 wrote the trained weights as `weight/NAME` if model.safetensors had their average.
AVERAGED = "weight/"
Tensors = dict[str, Tensor]
Description = tuple[torch.Size, torch.dtype]
SLAB_BYTES = 4 * 2**30
"""Maximum slab size, unless one tensor is larger. Small slabs leave memory unused behind large tensors."""
ALIGNMENT_BYTES = 64
Layout = dict[str, Description]


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> Tensors:
    """Return the optimizer state by name, such as `exp_avg/model.encoder.weight`, without copying it."""
    return {
        f"{key}/{name}": value.detach()
        for name, parameter in _trained_parameters(model)
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def optimizer_targets(model: nn.Module, optimizer: Optimizer, saved: Mapping[str, Description]) -> Tensors:
    """Allocate a tensor for each saved optimizer state, sharded like its parameter.

    `saved`: shape and dtype of the full tensors by name. Raises `ProjectError` CKP007 if names or shapes do
    not match the model's parameters, or if the weights of the checkpoint are averages.
    """
    parameters = dict(_trained_parameters(model))
    targets: Tensors = {}
    if any(name.startswith(AVERAGED) for name in saved):
        message = "model.safetensors has averaged weights (trainer.ema_decay), not the trained weights"
        raise ProjectError(CODE, message, removal_hint(["trainer.ema_decay"]))
    for full_name, (shape, dtype) in saved.items():
        parameter = parameters.get(full_name.partition("/")[2])
        if parameter is None:
            raise _mismatch_error(f"it has state for unknown parameters, such as {printable(full_name)}")
        if len(shape) and shape != parameter.shape:
            raise _mismatch_error(f"{full_name} has shape {tuple(shape)}, expected {tuple(parameter.shape)}")
        whole = torch.empty((), device=parameter.device) if not len(shape) else parameter.detach()
        targets[full_name] = torch.zeros_like(whole, dtype=dtype)
    _refuse_gaps(model, optimizer, saved)
    return targets


def set_optimizer_state(model: nn.Module, optimizer: Optimizer, tensors: Tensors) -> None:
    """Set the optimizer state to these tensors, by name, without copying them."""
    states: dict[str, Tensors] = defaultdict(dict)
    for full_name, tensor in tensors.items():
        key, name = full_name.split("/", 1)
        states[name][key] = tensor
    for name, parameter in _trained_parameters(model):
        optimizer.state[parameter] = states[name]


def _refuse_gaps(model: nn.Module, optimizer: Optimizer, saved: Mapping[str, Description]) -> None:
    """Raise `ProjectError` CKP007 if a parameter lacks state that others with the same update rule have."""
    keys: dict[str, set[str]] = defaultdict(set)
    for full_name in saved:
        key, name = full_name.split("/", 1)
        keys[name].add(key)
    for names in _names_by_rule(model, optimizer):
        wanted = set[str]().union(*(keys[name] for name in names))
        for name in names:
            if keys[name] != wanted or (saved and not wanted):
                raise _mismatch_error(f"{min(wanted - keys[name], default='state')}/{name} is missing")


def _names_by_rule(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    names = {id(parameter): name for name, parameter in _trained_parameters(model)}
    by_rule: dict[str, list[str]] = defaultdict(list)
    for group in optimizer.param_groups:
        by_rule[group.get("rule", "")] += [names[id(each)] for each in group["params"] if id(each) in names]
    return list(by_rule.values())


def random_state() -> bytes:
    """Serialize the RNG state of this process: torch (CPU and current GPU), numpy and Python."""
    version, words, gauss_next = random.getstate()
    legacy: Any = np.random.get_state()  # a tuple, which its annotation is not
    _, keys, position, has_gauss, cached = legacy
    state = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([version, *words], dtype=torch.int64),
        "python_gauss": torch.tensor(math.nan if gauss_next is None else gauss_next, dtype=torch.float64),
        "numpy": torch.tensor([position, has_gauss, *keys.tolist()], dtype=torch.int64),
        "numpy_gauss": torch.tensor(cached, dtype=torch.float64),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return save(state)


def restore_random_state(packed: bytes) -> None:
    """Restore the RNG state returned by `random_state`."""
    state = load(packed)
    torch.set_rng_state(state["torch"])
    version, *words = state["python"].tolist()
    gauss_next = state["python_gauss"].item()
    random.setstate((version, tuple(words), None if math.isnan(gauss_next) else gauss_next))
    position, has_gauss, *keys = state["numpy"].tolist()
    cached = state["numpy_gauss"].item()
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _trained_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, each) for name, each in model.named_parameters() if each.requires_grad)


def _mismatch_error(message: str) -> ProjectError:
    return ProjectError(CODE, f"the optimizer state does not fit the model: {message}")


def tensor_layout(tensors: Mapping[str, Tensor]) -> Layout:
    """Return each tensor's shape and dtype; for a sharded tensor, the full shape."""
    return {name: (each.shape, each.dtype) for name, each in tensors.items()}


class Snapshot:
    """Host buffers for one snapshot at a time, allocated once and reused."""

    def __init__(self, device: torch.device, optimizer: Optimizer) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copied: Any = None
        self._layout: Layout = {}
        self._memory: dict[str, Tensor] = {}
        if self._stream is not None:
            optimizer.register_step_pre_hook(self._delay_update)

    def reserve(self, layout: Layout) -> dict[str, Tensor]:
        """Return the buffers, allocated again if the layout changed. Pinned ones take seconds to allocate."""
        if layout != self._layout:
            self._memory = {}  # free the old memory first: both may not fit
            self._memory = dict(_allocate_views(layout, is_pinned=self._stream is not None))
            self._layout = layout
        return self._memory

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Start copying the tensors; return the buffers, which are complete after `wait`.

        On a GPU, the next optimizer step waits for the copy; no other code may change the tensors before.
        """
        memory = self.reserve(tensor_layout(tensors))
        if self._stream is None:
            for name, tensor in tensors.items():
                memory[name].copy_(tensor)
            return memory
        # The copy must see this step's update, which may still be in the queue of the current stream.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for name, tensor in tensors.items():
                memory[name].copy_(tensor, non_blocking=True)
                # A gathered weight is freed before it is copied: the allocator must not reuse it until then.
                tensor.record_stream(self._stream)
            self._copied = self._stream.record_event()
        return memory

    def wait(self) -> None:
        """Block the host until the copy is complete."""
        if self._copied is not None:
            self._copied.synchronize()

    def _delay_update(self, *_: Any) -> None:
        # On the device: the host queues the optimizer's step at once, and the GPU runs it after the copy.
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)


def _allocate_views(layout: Layout, *, is_pinned: bool) -> Iterator[tuple[str, Tensor]]:
    """Allocate the tensors in slabs of memory: the largest first, each in the first slab that has room."""
    sizes = {name: prod(shape) * dtype.itemsize for name, (shape, dtype) in layout.items()}
    remaining = sum(map(_align_up, sizes.values()))
    rooms: list[Tensor] = []
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        num_bytes, taken = sizes[name], _align_up(sizes[name])
        index = next((index for index, room in enumerate(rooms) if len(room) >= num_bytes), len(rooms))
        if index == len(rooms):
            size = _slab_bytes(max(0, remaining - sum(map(len, rooms))), num_bytes)
            rooms.append(torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned))
        shape, dtype = layout[name]
        yield name, rooms[index][:num_bytes].view(dtype).view(shape)
        rooms[index] = rooms[index][taken:]
        remaining -= taken


def _slab_bytes(remaining: int, first: int) -> int:
    """Return a power of two: as many bytes as the remaining tensors fill, or more if the first needs more.

    torch rounds pinned allocations up to a power of two.
    """
    filled, needed = 1 << max(0, remaining.bit_length() - 1), 1 << (first - 1).bit_length()
    return max(min(filled, SLAB_BYTES), needed)


def _align_up(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
