"""Probes of native sparse attention: selection, causality, isolation, dense limit, heads and gates.

The operator that a run would use is called with random queries, keys, values and gates of the model's heads.
A result is either exact (the number of wrong values) or approximate (an error in units of rounding).

Shapes: T tokens, N query heads, K heads of keys and values, H channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch
from neobert.families.attention import AttentionSpec, SelectedBlocks
from neobert.families.backbone import Backbone
from neobert.families.nsa.attention import build_attend, choose_kernels
from neobert.families.nsa.by_token import attend_by_token, token_block_weights
from neobert.families.nsa.model import NativeSparseAttention, compute_rotation, rotate_halves
from neobert.families.nsa.reference import AttentionResult
from neobert.kernels.plain_attention import plain_attention
from neobert.objectives import Objective
from neobert.parallel import World
from neobert.probes.attention import ROUNDING
from neobert.probes.probed_model import hidden_states
from neobert.tasks.rank_data import objective_inputs
from neobert.training.loop.task import ProbeResult

TIE = 1e-5
"""Relative weight difference below which two blocks are interchangeable in the selection."""
FAR = 4096
"""Position of a rotation that is compared; in bf16 it has the same value as its neighbours."""

Row = tuple[Tensor, Tensor, Tensor, Tensor]
"""Packed q [T, N, H], k and v [T, K, H], and gates [T, N, 3]."""
Operator = Callable[[Row, Sequence[int], SelectedBlocks], AttentionResult]


def sparse_answers_for_model(
    backbone: Backbone, objective: Objective, world: World, batch: Microbatch, spec: AttentionSpec
) -> Iterator[ProbeResult]:
    """Yield the results of all probes for a model on its device, or nothing if it has no sparse attention."""
    if spec.selected is None:
        return
    yield from sparse_answers(spec, world.device, world.compute_dtype)
    with world.autocast():
        states = hidden_states(backbone, objective, objective_inputs(batch, world.device))
        loss = (states.float() * torch.linspace(-1, 1, states.shape[-1], device=states.device)).sum()
    modules = [each for each in backbone.model.modules() if isinstance(each, NativeSparseAttention)]
    yield ProbeResult("gates without a gradient", "exact", count_dead_gates(modules, loss))


def sparse_answers(spec: AttentionSpec, device: torch.device, dtype: torch.dtype) -> Iterator[ProbeResult]:
    """Yield the results of the probes of the operator that runs on this device.

    Raises `ProjectError` ATT001 if no operator can run.
    """
    assert spec.selected is not None
    kernels, sparse = choose_kernels(device.type, dtype, spec), spec.selected

    def operator(row: Row, lengths: Sequence[int], selected: SelectedBlocks) -> AttentionResult:
        bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
        return build_attend(kernels, replace(spec, selected=selected), bounds, max(lengths))(*row)

    lengths = uneven_lengths(sparse)
    row = random_row(spec, sum(lengths), device, dtype)
    yield from definition_answers(operator, row, lengths, sparse)
    yield from leak_answers(operator, row, lengths, sparse)
    yield ProbeResult(
        "dense attention, where both cover a document",
        "close",
        dense_attention_error(operator, spec, device, dtype),
    )
    yield ProbeResult("rotation in fp32", "close", rotation_error(device, dtype, spec.head_size))


def uneven_lengths(sparse: SelectedBlocks) -> tuple[int, ...]:
    """Return document lengths around the block size; only in the longest can blocks be left out."""
    size = sparse.size
    return (1, size - 1, (sparse.counts + 2) * size + 5, size, 37, size + 1, 3 * size - 1)


def random_row(spec: AttentionSpec, tokens: int, device: torch.device, dtype: torch.dtype) -> Row:
    """Return random queries, keys, values and gates of one row, the same on every device."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(tokens, heads, spec.head_size, generator=draw)
        for heads in (spec.heads, spec.kv_heads, spec.kv_heads)
    )
    gates = torch.rand(tokens, spec.heads, 3, generator=draw)
    q, k, v, gates = (each.to(device, dtype) for each in (q, k, v, gates))
    return q, k, v, gates


@torch.no_grad()
def definition_answers(
    operator: Operator, row: Row, lengths: Sequence[int], sparse: SelectedBlocks
) -> Iterator[ProbeResult]:
    """Yield how selection and outputs differ from the definition, computed token by token."""
    found, wrong, error = operator(row, lengths, sparse), 0, 0.0
    parts = zip(*(each.split(list(lengths)) for each in (*row, found.context, found.blocks)), strict=True)
    for q, k, v, gates, context, blocks in parts:
        expected, chosen = attend_by_token(q, k, v, gates, sparse)
        for t, heads in enumerate(blocks.tolist()):
            for head, entries in enumerate(heads):
                own = sorted(block for block in entries if block >= 0)
                if own != sorted(chosen[t][head]):
                    weights = token_block_weights(q, k, t, head, sparse)
                    wrong += not _is_selection_tied(own, chosen[t][head], weights)
        error = max(error, _error_in_rounding_units(context, expected))
    yield ProbeResult("selected blocks of the definition", "exact", wrong)
    yield ProbeResult("outputs of the definition", "close", error)


def _is_selection_tied(own: Sequence[int], chosen: Sequence[int], weights: Sequence[float]) -> bool:
    """Return whether two selections differ only in blocks whose weights are equal up to `TIE`."""
    others = {*own} ^ {*chosen}
    if len(own) != len({*own}) or len(own) != len(chosen) or max(others) >= len(weights):
        return False
    found = [weights[block] for block in others]
    return max(found) - min(found) <= TIE


def leak_answers(
    operator: Operator, row: Row, lengths: Sequence[int], sparse: SelectedBlocks
) -> Iterator[ProbeResult]:
    """Yield what changes elsewhere if later tokens, other documents or another head of keys change."""
    device = row[0].device
    place = torch.cat([torch.arange(length) for length in lengths]).to(device)
    document = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).to(device)
    # Inside a block: the mean of an incomplete one must not be seen either.
    middle = torch.tensor(lengths, device=device)[document] // 2 + 1
    is_late, is_other = place >= middle, document % 2 == 0
    for subject, is_changed in (("later tokens", is_late), ("other documents", is_other)):
        rows = row, _with_other_values(row, is_changed)
        before, after = (
            _measure_unchanged_part(operator, each, lengths, sparse, ~is_changed) for each in rows
        )
        differs = sum(int((one != two).sum()) for one, two in zip(before.values, after.values, strict=True))
        yield ProbeResult(f"results where {subject} change", "exact", differs)
        yield ProbeResult(f"gradients of {subject}", "exact", after.leaks)
        # A GPU adds the parts of a gradient in any order.
        error = max(map(_error_in_rounding_units, after.gradients, before.gradients))
        yield ProbeResult(f"gradients where {subject} change", "close", error)
    if (heads := row[1].shape[1]) > 1:
        changed = _with_other_values(row, torch.ones_like(is_late), first_head=True)
        before, after = (
            operator(each, lengths, sparse).context.unflatten(1, (heads, -1)) for each in (row, changed)
        )
        differs = (before[:, 1:] != after[:, 1:]).sum()
        yield ProbeResult("results where another head of keys changes", "exact", int(differs))


class UnchangedPart(NamedTuple):
    """Results of a pass for unchanged tokens.

    Attributes:
        values: outputs, selection, and scores.
        gradients: of q, k, v and gates, by a loss over the unchanged tokens.
        leaks: number of non-zero gradients of the changed tokens.
    """

    values: Sequence[Tensor]
    gradients: Sequence[Tensor]
    leaks: int


def _measure_unchanged_part(
    operator: Operator, row: Row, lengths: Sequence[int], sparse: SelectedBlocks, is_kept: Tensor
) -> UnchangedPart:
    leaves = [each.detach().clone().requires_grad_() for each in row]
    found = operator((leaves[0], leaves[1], leaves[2], leaves[3]), lengths, sparse)
    place = torch.cat([torch.arange(length) for length in lengths]).to(is_kept.device)
    scores = found.lse[is_kept & (place >= sparse.size - 1)]
    gradients = torch.autograd.grad(found.context[is_kept].float().sum(), leaves)
    leaks = sum(int((each[~is_kept] != 0).sum()) for each in gradients)
    values = [each.detach() for each in (found.context[is_kept], found.blocks[is_kept], scores)]
    return UnchangedPart(values, [each[is_kept] for each in gradients], leaks)


def _with_other_values(row: Row, is_changed: Tensor, *, first_head: bool = False) -> Row:
    draw = torch.Generator().manual_seed(1)
    changed = []
    for each in row[:3]:
        other = torch.randn(each.shape, generator=draw).to(each)
        mask = is_changed[:, None, None].expand_as(each).clone()
        if first_head:
            mask[:, each.shape[1] // row[1].shape[1] :] = False
        changed.append(torch.where(mask, other, each))
    return changed[0], changed[1], changed[2], row[3]


def dense_attention_error(
    operator: Operator, spec: AttentionSpec, device: torch.device, dtype: torch.dtype
) -> float:
    """Return the error, in units of rounding, if all blocks are selected and the window covers the row.

    Both branches are then dense attention, and the outputs equal its output times the sum of the gates.
    """
    assert spec.selected is not None
    length = spec.selected.size * spec.selected.counts
    sparse, causal = spec.selected._replace(window=length), replace(spec, selected=None)
    q, k, v, gates = random_row(spec, length, device, dtype)
    gates = gates * torch.tensor([0.0, 1.0, 1.0], device=device, dtype=dtype)
    leaves = [each.requires_grad_() for each in (q, k, v)]
    own = operator((q, k, v, gates), [length], sparse).context
    gradient = torch.randn(own.shape, generator=torch.Generator().manual_seed(2)).to(own)
    found = [own, *torch.autograd.grad(own, leaves, gradient)]
    wide = [each.detach().double().requires_grad_() for each in leaves]
    dense = plain_attention(wide[0], wide[1], wide[2], causal) * gates.double().sum(-1, keepdim=True)
    expected = [dense, *torch.autograd.grad(dense, wide, gradient.double())]
    return max(
        _error_in_rounding_units(one.detach(), two.detach()) for one, two in zip(found, expected, strict=True)
    )


def rotation_error(device: torch.device, dtype: torch.dtype, head_size: int) -> float:
    """Return the error of a rotation by a far position, in units of rounding of fp32 angles."""
    theta, half = 10_000.0, head_size // 2
    x = torch.randn(2, 1, head_size, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    positions = torch.tensor([FAR - 1, FAR + 1], device=device)
    with torch.autocast(device.type, torch.bfloat16):
        found = rotate_halves(x, compute_rotation(positions, head_size, theta)).double()
    angles = positions[:, None, None].double() * theta ** -(torch.arange(half, device=device).double() / half)
    first, second = x.double().chunk(2, -1)
    expected = torch.cat(
        [first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()], -1
    )
    unit = max(torch.finfo(dtype).eps, FAR * torch.finfo(torch.float32).eps) * float(x.abs().max())
    return float((found - expected).abs().max()) / unit


def count_dead_gates(modules: Sequence[NativeSparseAttention], loss: Tensor) -> int:
    """Count the gates whose weights get no gradient from `loss`."""
    weights = [each.g_proj.weight for each in modules]
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    return sum(
        len(weight) if each is None else int((each == 0).all(1).sum())
        for weight, each in zip(weights, gradients, strict=True)
    )


def _error_in_rounding_units(measured: Tensor, expected: Tensor) -> float:
    unit = ROUNDING if measured.dtype == torch.float32 else torch.finfo(measured.dtype).eps
    largest = float(expected.abs().max())
    return float((measured.double() - expected.double()).abs().max()) / max(unit * largest, 1e-30)
