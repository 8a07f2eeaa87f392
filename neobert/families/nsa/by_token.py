"""Native sparse attention by its definition, token by token: what probes compare the kernels with.

Written for clarity; shares no code with the kernels or the reference. Imports torch.

S tokens of a document, N query heads, K heads of keys and values, G = N / K, H channels of a head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neobert.families.attention import SelectedBlocks

Array = NDArray[np.float64]


@torch.no_grad()
def attend_by_token(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor, spec: SelectedBlocks
) -> tuple[Tensor, list[list[list[int]]]]:
    """Attend in one document: q [S, N, H], k and v [S, K, H], gates [S, N, 3], in fp64 on the CPU.

    Returns the context [S, N, H], and the selected blocks of each token and head of keys.
    """
    queries, keys, values, shares = (each.double().cpu().numpy() for each in (q, k, v, gates))
    key_means, value_means = (_block_means(each, spec.size) for each in (k, v))
    context, chosen = np.empty_like(queries), list[list[list[int]]]()
    per_group = q.shape[1] // k.shape[1]
    for t in range(len(queries)):
        chosen.append([])
        for head in range(k.shape[1]):
            group = slice(head * per_group, (head + 1) * per_group)
            query, gate = queries[t, group], shares[t, group, :, None]
            complete = (t + 1) // spec.size
            weights = _attention_weights(query, key_means[:complete, head])
            blocks = _select_blocks(weights.mean(0), t // spec.size, spec)
            tokens = [u for b in blocks for u in range(b * spec.size, min((b + 1) * spec.size, t + 1))]
            near = slice(max(0, t - spec.window + 1), t + 1)
            context[t, group] = (
                gate[:, 0] * (weights @ value_means[:complete, head])
                + gate[:, 1] * (_attention_weights(query, keys[tokens, head]) @ values[tokens, head])
                + gate[:, 2] * (_attention_weights(query, keys[near, head]) @ values[near, head])
            )
            chosen[t].append(blocks)
    return torch.from_numpy(context).to(q.device, q.dtype), chosen


def token_block_weights(q: Tensor, k: Tensor, t: int, head: int, spec: SelectedBlocks) -> list[float]:
    """Return the weights by which token t and a head of keys choose among the complete blocks."""
    per_group = q.shape[1] // k.shape[1]
    query = q[t, head * per_group : (head + 1) * per_group].detach().double().cpu().numpy()
    weights = _attention_weights(query, _block_means(k, spec.size)[: (t + 1) // spec.size, head])
    return list(map(float, weights.mean(0)))


def _block_means(x: Tensor, size: int) -> Array:
    """Return the means of the complete blocks of x [S, K, H], rounded as x is."""
    complete = x[: len(x) // size * size].float().unflatten(0, (-1, size)).mean(1)
    return np.asarray(complete.to(x.dtype).double().cpu())


def _attention_weights(query: Array, keys: Array) -> Array:
    """Return the attention of queries [G, H] to keys [J, H], [G, J]; without keys, [G, 0]."""
    scores = query @ keys.T * query.shape[-1] ** -0.5
    powers = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _select_blocks(weights: NDArray[Any], own: int, spec: SelectedBlocks) -> list[int]:
    """Return the blocks that a token in block `own` selects: forced blocks, then the largest weights."""
    forced = sorted({0, max(0, own - 1), own})
    free = sorted(range(1, own - 1), key=lambda block: (-weights[block], block))
    return [*forced, *free[: max(0, spec.counts - len(forced))]]
