"""Optimizer and random state as plain tensors under plain names: nothing to unpickle."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.optim import Optimizer

from neobert.errors import ProjectError
from neobert.training.checkpoint.manifest import CODE

Tensors = dict[str, Tensor]


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> Tensors:
    """Name the optimizer's state: `exp_avg/model.encoder.weight` and so on, on the CPU."""
    return {
        f"{key}/{name}": value.detach().cpu()
        for name, parameter in _trained(model)
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(model: nn.Module, optimizer: Optimizer, tensors: Tensors) -> None:
    """Put the state back by name. Raises `ProjectError` CKP007 where names or shapes differ."""
    remaining = dict(tensors)
    keys = sorted({name.split("/", 1)[0] for name in tensors})
    for name, parameter in _trained(model):
        state = {key: remaining.pop(f"{key}/{name}", None) for key in keys}
        for key, value in state.items():
            if value is None or (value.ndim and value.shape != parameter.shape):
                raise _mismatch(f"{key}/{name} is missing or has another shape")
        # Fresh memory: a slice of a mapped file may be unaligned, and sums could then round differently.
        optimizer.state[parameter] = {key: value.clone().to(parameter.device) for key, value in state.items()}
    if remaining:
        raise _mismatch(f"there is state for unknown parameters, such as {min(remaining)}")


def random_state() -> bytes:
    """Pack the state of this process's generators: torch on CPU and GPU, numpy, Python."""
    version, words, gauss_next = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()
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
