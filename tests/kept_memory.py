"""Bytes that autograd keeps for a backward pass, counted."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def counting_kept(model: torch.nn.Module) -> Iterator[dict[int, int]]:
    """Yield the bytes of each storage that the passes of the block keep, but for weights of the model."""
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, int] = {}
    alive = []  # an address is not used again while its tensor lives

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        alive.append(tensor)
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept
