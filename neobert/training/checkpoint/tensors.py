"""Optimizer and random state as plain tensors under plain names: nothing to unpickle."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.optim import Optimizer

from neobert.errors import ProjectError
from neobert.printable import printable
from neobert.runfiles.checkpoint.refusal import CODE

Tensors = dict[str, Tensor]
Description = tuple[torch.Size, torch.dtype]


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> Tensors:
    """Name the optimizer's state: `exp_avg/model.encoder.weight` and so on. Not copied."""
    return {
        f"{key}/{name}": value.detach()
        for name, parameter in _trained(model)
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def optimizer_targets(model: nn.Module, optimizer: Optimizer, saved: Mapping[str, Description]) -> Tensors:
    """Make memory for saved state, by name and spread as the parameters are.

    Raises `ProjectError` CKP007 where the names or shapes are not those of this optimizer's parameters.
    """
    parameters = dict(_trained(model))
    targets: Tensors = {}
    for full_name, (shape, dtype) in saved.items():
        parameter = parameters.get(full_name.partition("/")[2])
        if parameter is None:
            raise _mismatch(f"there is state for unknown parameters, such as {printable(full_name)}")
        if len(shape) and shape != parameter.shape:
            raise _mismatch(f"{full_name} has the shape {tuple(shape)} in place of {tuple(parameter.shape)}")
        whole = torch.empty((), device=parameter.device) if not len(shape) else parameter.detach()
        targets[full_name] = torch.zeros_like(whole, dtype=dtype)
    _refuse_gaps(model, optimizer, saved)
    return targets


def take_optimizer_state(model: nn.Module, optimizer: Optimizer, tensors: Tensors) -> None:
    """Hand the optimizer its state, by name. It keeps these tensors."""
    states: dict[str, Tensors] = defaultdict(dict)
    for full_name, tensor in tensors.items():
        key, name = full_name.split("/", 1)
        states[name][key] = tensor
    for name, parameter in _trained(model):
        optimizer.state[parameter] = states[name]


def _refuse_gaps(model: nn.Module, optimizer: Optimizer, saved: Mapping[str, Description]) -> None:
    """What one parameter has, all have that the same rule updates."""
    keys: dict[str, set[str]] = defaultdict(set)
    for full_name in saved:
        key, name = full_name.split("/", 1)
        keys[name].add(key)
    for names in _names_by_rule(model, optimizer):
        wanted = set[str]().union(*(keys[name] for name in names))
        for name in names:
            if keys[name] != wanted or (saved and not wanted):
                raise _mismatch(f"{min(wanted - keys[name], default='state')}/{name} is missing")


def _names_by_rule(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    names = {id(parameter): name for name, parameter in _trained(model)}
    by_rule: dict[str, list[str]] = defaultdict(list)
    for group in optimizer.param_groups:
        by_rule[group.get("rule", "")] += [names[id(each)] for each in group["params"] if id(each) in names]
    return list(by_rule.values())


def random_state() -> bytes:
    """Pack the state of this process's generators: torch on CPU and GPU, numpy, Python."""
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
    """Set this process's generators to what `random_state` packed."""
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


def _trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, each) for name, each in model.named_parameters() if each.requires_grad)


def _mismatch(message: str) -> ProjectError:
    return ProjectError(CODE, f"the optimizer state does not fit the model: {message}")
