"""Attention probes of a model: isolation, direction, equality with plain attention, positions.

They are derived from `AttentionSpec`, the same for every task, and compare final hidden states. The weights
are drawn so that rounding in the run's precision does not hide a fault.

Shapes: T tokens of a microbatch, padding included; S tokens of one document; D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor, nn
from torch.func import functional_call

from neobert.data.batches.microbatch import Microbatch
from neobert.families.attention import AttentionSpec
from neobert.parallel import copy_own_rows
from neobert.probes.layout import Layout, with_edge_lengths, with_other_tokens
from neobert.training.loop.task import TINY, ProbeResult

LONGEST_COMPARED = 512
"""Maximum length of compared documents: plain attention keeps all scores in memory."""

MAX_COMPARED = 12
"""Maximum number of documents that are compared with plain attention; edge lengths come first."""

ROUNDING = 5e-7
"""Relative error that fp32 rounding explains (about 4 machine epsilons): the least unit of errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedModel:
    """Functions that the attention probes call on a model.

    Attributes:
        hidden: returns the final hidden states [T, D] of a microbatch, computed as in training, without
            dropout.
        plain: returns the final hidden states [S, D] of one document [S] by plain attention, as exactly as
            the weights allow.
        rounded: the same in the run's precision.
        positions: returns the position ids [T] that the model received for a microbatch; None if it received
            none.
        spec: attention that the model declares.
    """

    hidden: Callable[[Microbatch], Tensor]
    plain: Callable[[Tensor], Tensor]
    rounded: Callable[[Tensor], Tensor]
    positions: Callable[[Microbatch], Tensor | None]
    spec: AttentionSpec


def attention_answers(probed: ProbedModel, batch: Microbatch) -> Iterator[ProbeResult]:
    """Yield the results of all probes on a microbatch that is full of text.

    A probe that cannot be carried out, such as isolation with one document, yields no result.
    """
    batch = replace(
        with_edge_lengths(batch, attention_reach(probed.spec)), token_type_ids=None
    )  # as `plain` has none
    layout = Layout.from_microbatch(batch)
    before = probed.hidden(batch)
    noise = _largest_change(probed.hidden(batch), before).max()

    def change_beyond_noise(is_other: Tensor) -> Tensor:
        """Return the change of each token's hidden state, less the largest change between equal passes."""
        after = probed.hidden(with_other_tokens(batch, is_other))
        return (_largest_change(after, before) - noise).clamp(min=0)

    is_even = layout.document % 2 == 0
    halves, wholes = is_even & layout.is_token & layout.is_late, ~is_even
    by_halves, by_wholes = change_beyond_noise(halves), change_beyond_noise(wholes)
    yield from _isolation_answers(by_halves, by_wholes, is_even, layout)
    yield from _direction_answers(by_halves, is_even & layout.is_token, layout, probed.spec)
    yield equality_answer(probed, batch, layout, before)
    positions = probed.positions(batch)
    if positions is not None:
        is_misplaced = (positions.flatten().cpu() != layout.position) & layout.is_token
        yield ProbeResult("documents", "positions", int(is_misplaced.sum()))


def attention_reach(spec: AttentionSpec) -> int:
    """Return how many tokens an attention window reaches to one side; 3 if the model has no windows."""
    return 3 if spec.window is None else spec.window.reach


def _largest_change(after: Tensor, before: Tensor) -> Tensor:
    return (after - before).abs().amax(-1).float().cpu()


def _isolation_answers(
    by_halves: Tensor, by_wholes: Tensor, is_even: Tensor, layout: Layout
) -> Iterator[ProbeResult]:
    """Yield the isolation results: changing half of the documents must not change the others."""
    odd, even = ~is_even & layout.is_token, is_even & layout.is_token
    if not odd.any() and layout.is_token.all():
        return
    unchanged = torch.cat([by_halves[odd], by_wholes[even]])
    effect = torch.cat([by_halves, by_wholes]).max().clamp(min=TINY)
    yield ProbeResult("other documents and padding", "isolation", float(unchanged.max() / effect))


def _direction_answers(
    moved: Tensor, is_changed: Tensor, layout: Layout, spec: AttentionSpec
) -> Iterator[ProbeResult]:
    """Yield the change of early tokens in documents whose second half was changed."""
    is_early = is_changed & ~layout.is_late
    if not is_early.any():
        return
    if spec.is_causal:
        effect = moved[is_changed].max().clamp(min=TINY)
        yield ProbeResult("later tokens", "causal", float(moved[is_early].max() / effect))
        return
    # The last of the early tokens is within any window of the first late one.
    is_last = is_early & (layout.position == layout.length // 2 - 1)
    yield ProbeResult("later tokens", "bidirectional", float((moved[is_last] > 0).float().mean()))


def equality_answer(probed: ProbedModel, batch: Microbatch, layout: Layout, hidden: Tensor) -> ProbeResult:
    """Compare documents in the microbatch with plain attention over each document alone.

    The value is the largest root mean square error of a token, relative to the error of plain
    attention in the run's precision.
    """
    error, unit = 0.0, 0.0
    ids = batch.input_ids.flatten().to(hidden.device)
    compared = (tokens for tokens in layout.documents() if 0 < len(tokens) <= LONGEST_COMPARED)
    for tokens in islice(compared, MAX_COMPARED):
        places = tokens.to(hidden.device)
        truth = probed.plain(ids[places])
        error = max(error, _rms(hidden[places] - truth))
        least = ROUNDING * float(truth.abs().max())
        unit = max(unit, least, _rms(probed.rounded(ids[places]) - truth))
    return ProbeResult("documents", "equality", error / max(unit, TINY))


def _rms(error: Tensor) -> float:
    return float(error.float().square().mean(-1).sqrt().max())


@torch.no_grad()
def draw_weights(model: nn.Module, embedding_multiplier: float = 1.0, seed: int = 0) -> None:
    """Draw random weights that keep activations at unit scale; smaller ones would hide faults in rounding.

    `embedding_multiplier` as in `ModelShape`: a residual stream far above the branches that are added to it
    would hide them in bf16.
    """
    draws: dict[torch.device, torch.Generator] = {}
    for name, weight in model.named_parameters():
        if weight.device not in draws:
            draws[weight.device] = torch.Generator(weight.device).manual_seed(seed)
        draw = draws[weight.device]
        module = model.get_submodule(name.rpartition(".")[0])
        # One weight at a time is whole: a rank keeps its rows.
        values = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
        if weight.dim() == 1:
            is_one = name.endswith("weight") and not _is_weight_offset_by_one(module, values.zero_())
            values.normal_(float(is_one), 0.1, generator=draw)
        elif isinstance(module, nn.Embedding):
            values.normal_(0.0, 1.0 / embedding_multiplier, generator=draw)
        else:
            values.normal_(0.0, values[0].numel() ** -0.5, generator=draw)
        copy_own_rows(weight, values)


def _is_weight_offset_by_one(module: nn.Module, zeros: Tensor) -> bool:
    """Return whether a norm of transformers multiplies by 1 + weight, as Gemma's do."""
    if not type(module).__module__.startswith("transformers.") or getattr(module, "bias", None) is not None:
        return False
    inputs = torch.linspace(-1, 2, len(zeros), device=zeros.device)[None]
    values: Tensor = functional_call(module, {"weight": zeros}, (inputs,))
    return bool(values.any())
