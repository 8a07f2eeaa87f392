"""A lookup whose gradient repeats to the bit in compiled steps. V rows, D wide.

A compiler takes the backward of torch's own apart into additions by atomics, in another order every time.
"""

from typing import Any

import torch
from torch import Tensor

NO_PADDING = -1


@torch.library.custom_op("neobert::embedding", mutates_args=())
def _embedding(ids: Tensor, weight: Tensor, padding_id: int) -> Tensor:
    return torch.ops.aten.embedding(weight, ids, padding_id)


@_embedding.register_fake
def _(ids: Tensor, weight: Tensor, padding_id: int) -> Tensor:
    return weight.new_empty(*ids.shape, weight.shape[1])


@torch.library.custom_op("neobert::embedding_backward", mutates_args=())
def _embedding_backward(grad: Tensor, ids: Tensor, num_rows: int, padding_id: int) -> Tensor:
    # torch's eager kernel sorts the ids and adds in that order: equal inputs give equal bits. As an opaque
    # operator it stays that kernel under torch.compile.
    return torch.ops.aten.embedding_dense_backward(grad, ids, num_rows, padding_id, False)


@_embedding_backward.register_fake
def _(grad: Tensor, ids: Tensor, num_rows: int, padding_id: int) -> Tensor:
    return grad.new_empty(num_rows, grad.shape[-1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ids, weight, ctx.padding_id = inputs
    ctx.num_rows = weight.shape[0]
    ctx.save_for_backward(ids)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (ids,) = ctx.saved_tensors
    return None, _embedding_backward(grad, ids, ctx.num_rows, ctx.padding_id), None


_embedding.register_autograd(_differentiate, setup_context=_save)


def embedding(ids: Tensor, weight: Tensor, padding_id: int | None) -> Tensor:
    """Look ids up in weight [V, D]: ids [...] int64 to [..., D]. The row of `padding_id` gets no gradient."""
    return _embedding(ids, weight, NO_PADDING if padding_id is None else padding_id)
