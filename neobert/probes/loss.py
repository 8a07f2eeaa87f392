"""Probes of a task's loss: the texts it depends on, in the actual training step.

The probes of `neobert.probes.attention` test only the model. These also test what a task does with it: a
compiled step, an objective that calls the model in its own way, a shift of its targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch, ignored_label, is_target
from neobert.data.batches.targets import IGNORED
from neobert.families.attention import AttentionSpec
from neobert.probes.layout import Layout, max_texts_per_example, with_other_tokens
from neobert.training.loop.task import TINY, ProbeResult, TaskProber


def loss_answers(
    prober: TaskProber, batch: Microbatch, spec: AttentionSpec, num_classes: int, *, compares: bool = False
) -> Iterator[ProbeResult]:
    """Yield whether the loss of an example depends on each of its own texts, and on nothing else.

    Args:
        batch: full of text; every second example is labelled and its loss observed.
        num_classes: number of classes of a token's label; not used where texts are labelled.
        compares: the loss of an example compares it with the others, as with in-batch negatives: it must not
            depend on padding. In a packed microbatch, half of the examples are made padding.
    """
    if batch.attention_mask is not None:
        batch = with_padding(batch)
    elif compares:
        batch = with_half_as_padding(batch)
    layout = Layout.from_microbatch(batch)
    group = batch.groups[layout.document]
    is_own = layout.is_token & (group % 2 == 0)
    labels_tokens = batch.labels.shape == batch.input_ids.shape
    early = is_own & ~layout.is_late
    labelled = with_labels_at(batch, early, num_classes) if labels_tokens else with_half_of_labels(batch)
    before = prober.loss(labelled)

    def change(is_other: Tensor) -> float:
        return abs(prober.loss(with_other_tokens(labelled, is_other)) - before)

    looks_back = spec.is_causal and labels_tokens
    own = early if looks_back else is_own & layout.is_late
    text = text_index_in_example(batch)[layout.document]
    effect = min(change(own & (text == number)) for number in range(max_texts_per_example(batch)))
    which = "earlier" if looks_back else "later"
    yield ProbeResult(f"the {which} tokens of a text", "different", effect / max(abs(before), TINY))
    others = ~layout.is_token if compares else ~is_own
    subject = "padding" if compares else "other texts and padding"
    yield ProbeResult(subject, "same", change(others) / max(effect, TINY))
    if looks_back:
        yield ProbeResult(
            "the later tokens of a text", "same", change(is_own & layout.is_late) / max(effect, TINY)
        )
        yield _shift_answer(prober, batch, early & (layout.position == layout.length // 2 - 1), num_classes)


def _shift_answer(prober: TaskProber, batch: Microbatch, is_last: Tensor, num_classes: int) -> ProbeResult:
    """Return the result for the target shift: the token at a target's own position must affect its loss."""
    labelled = with_labels_at(batch, is_last, num_classes)
    before = prober.loss(labelled)
    effect = abs(prober.loss(with_other_tokens(labelled, is_last)) - before)
    return ProbeResult("the token at the position of a target", "shift", effect / max(abs(before), TINY))


def with_padding(batch: Microbatch) -> Microbatch:
    """Mask the last quarter of every row as padding, without changing its tokens."""
    assert batch.attention_mask is not None
    width = batch.input_ids.shape[1]
    mask = batch.attention_mask.clone()
    mask[:, width - width // 4 :] = False
    return replace(batch, attention_mask=mask, num_tokens=int(mask.sum()))


def with_half_as_padding(batch: Microbatch) -> Microbatch:
    """Turn the second half of a packed microbatch's examples into padding, without changing its tokens."""
    assert batch.cu_seqlens is not None
    is_late = batch.groups > batch.groups.max() // 2
    num_segments = int(is_late.nonzero()[0])
    labels = batch.labels.masked_fill(is_late, ignored_label(batch.labels.numpy()))
    return replace(
        batch,
        labels=labels,
        groups=batch.groups.masked_fill(is_late, -1),
        num_tokens=int(batch.cu_seqlens[num_segments]),
        num_targets=int(is_target(labels.numpy()).sum()),
        num_segments=num_segments,
    )


def text_index_in_example(batch: Microbatch) -> Tensor:
    """Return the index of each text in its example, from 0, int64 [texts]."""
    first = torch.searchsorted(batch.groups[: batch.num_segments], batch.groups[: batch.num_segments])
    return torch.arange(batch.num_segments) - first


def with_labels_at(batch: Microbatch, is_labelled: Tensor, num_classes: int) -> Microbatch:
    """Label the tokens of a flat mask by their ids modulo `num_classes`.

    At most as many tokens are labelled as the batch has targets.
    """
    places = is_labelled.nonzero().squeeze(1)[: batch.num_targets]
    labels = torch.full_like(batch.labels, IGNORED)
    labels.view(-1)[places] = batch.input_ids.flatten()[places] % num_classes
    return replace(batch, labels=labels, num_targets=len(places))


def with_half_of_labels(batch: Microbatch) -> Microbatch:
    """Keep every second example's labels, and ignore the other labels."""
    labels = batch.labels.masked_fill(batch.groups % 2 == 1, ignored_label(batch.labels.numpy()))
    return replace(batch, labels=labels, num_targets=int(is_target(labels.numpy()).sum()))
