"""Statistics of gates and selection in the last microbatch, for a line of metrics. Imports torch.

T packed tokens, N query heads, K heads of keys, B selected blocks, L blocks of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from neobert.families.attention import SelectedBlocks
from neobert.families.nsa.model import LastCall, NativeSparseAttention
from neobert.families.nsa.reference import is_forced
from neobert.metric_names import SPARSE
from neobert.parallel import World

BRANCHES = ("cmp", "slc", "swa")
COLLAPSED, CLOSED, OPEN = 0.95, 0.05, 0.95
DEAD_SHARE, DEAD_SATURATION = 0.01, 0.99
MEANS = (
    "gate_entropy_mean",
    "max_gate_mean",
    "collapse_fraction",
    *(f"branch_share_{each}" for each in BRANCHES),
)
PERIOD = 8191
"""Period of the weights of blocks in their checksum; prime, so that equal blocks of neighbouring tokens have
different weights."""


def attention_metrics(
    layers: Sequence[NativeSparseAttention], spec: SelectedBlocks, world: World
) -> dict[str, float]:
    """Return the metrics of the last microbatch over all ranks; empty before the first one.

    Gates are means over the layers; of saturation, the most saturated layer counts.
    """
    last = [each.last for each in layers if each.last is not None]
    if not last:
        return {}
    gates = torch.stack([gate_statistics(each.gates) for each in last])
    counts = torch.stack([selection_counts(each, spec) for each in last]).sum(0)
    gates, counts = world.all_reduce_sum(gates) / world.size, world.all_reduce_sum(counts)
    shares, saturated = gates[:, 3:6], gates[:, 6:]
    is_dead = (shares < DEAD_SHARE).any(1) | (saturated > DEAD_SATURATION).any(1)
    predicted, free, checksum, *tokens_by_blocks = counts.tolist()
    tokens = sum(tokens_by_blocks)
    reads = sum(number * count for number, count in enumerate(tokens_by_blocks))
    values = dict(zip(MEANS, gates.mean(0).tolist(), strict=False))
    values |= {
        f"gate_saturated_{name}": value
        for name, value in zip(BRANCHES, saturated.amax(0).tolist(), strict=True)
    }
    values |= {
        "dead_layers": is_dead.double().mean().item(),
        "k_mean": reads / tokens,
        "k_max": max(number for number, count in enumerate(tokens_by_blocks) if count),
        "pct_at_max": tokens_by_blocks[-1] / tokens,
        "free_share": free / max(1.0, reads),
        "reads_pred": predicted,
        "reads_act_total": reads,
        "selection_checksum": checksum,
    }
    return {f"{SPARSE}{name}": value for name, value in values.items()}


def gate_statistics(gates: Tensor) -> Tensor:
    """Return the means of gates [T, N, 3], fp64 [9]: as `MEANS`, then the saturated share of each branch.

    A gate's share is its value divided by the sum of the three; the entropy of the shares is at most log 3.
    """
    gates = gates.double()
    shares = gates / gates.sum(-1, keepdim=True).clamp(min=1e-30)
    largest = shares.amax(-1)
    entropy = -torch.special.xlogy(shares, shares).sum(-1)
    token_statistics = torch.stack([entropy, largest, (largest > COLLAPSED).double()], -1)
    is_saturated = ((gates < CLOSED) | (gates > OPEN)).double()
    return torch.cat([token_statistics, shares, is_saturated], -1).flatten(0, 1).mean(0)


def selection_counts(last: LastCall, spec: SelectedBlocks) -> Tensor:
    """Return counts of one layer over tokens and heads of keys, fp64 [4 + B].

    In order: blocks that the positions of the tokens predict, free choices, a checksum of the blocks, and the
    number of tokens with 0, 1, ..., B blocks.
    """
    own = (last.positions // spec.size)[:, None]
    is_block = last.blocks >= 0
    is_free = is_block & ~is_forced(last.blocks, own[..., None])
    weights = torch.arange(last.blocks.numel(), device=own.device).view_as(last.blocks) % PERIOD + 1
    predicted = last.blocks.shape[1] * (own + 1).clamp(max=spec.counts).sum()
    checksum = ((last.blocks + 1) * weights).sum()
    numbers = torch.arange(spec.counts + 1, device=own.device)
    tokens_by_blocks = (is_block.sum(-1)[..., None] == numbers).sum((0, 1))
    return torch.cat([torch.stack([predicted, is_free.sum(), checksum]), tokens_by_blocks]).double()
