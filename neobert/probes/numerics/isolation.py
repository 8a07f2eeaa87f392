"""Bit-exact probes: isolation of segments, attention direction, determinism.

Isolation: changing the tokens of one segment must not change a bit of another segment, forward or backward.
Direction: encoder tokens must attend to later tokens, decoder tokens must not. Determinism: running the same
step twice must give the same bits.

A tolerance cannot distinguish one leaked key from rounding; exact equality on identical shapes can. Two
identical passes are compared first, so that a nondeterministic kernel is not reported as an attention leak.

Shapes: T tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neobert.probes.numerics.leak_batch import SPARE_SLOTS, LeakBatch
from neobert.probes.numerics.paths import Path, absolute_difference, finite_or_infinity, largest_magnitude

NUM_VICTIMS = 12


class Observation(NamedTuple):
    """Effect of changing the tokens of one segment.

    Attributes:
        moved: differences of the other segments' hidden states or loss.
        responds: the changed segment itself gives another result.
        noise: largest difference between two passes over the unchanged batch.
    """

    moved: Tensor
    responds: bool
    noise: float


def choose_victims(batch: LeakBatch) -> tuple[int, ...]:
    """Return the segments to change: the first `NUM_VICTIMS` (edge lengths, the longest), and the last."""
    count = len(batch.places)
    return tuple(sorted({*range(min(NUM_VICTIMS, count)), count - 1}))


def measure_isolation(path: Path, batch: LeakBatch, victims: Iterable[int]) -> dict[str, Any]:
    """Change one segment after another; measure the effect on other segments, and cross-segment gradients."""
    watch = _observer(path, batch)
    chosen = tuple(victims)
    seen = [watch(victim) for victim in chosen]
    gradients = [_cross_gradient(path, batch, victim) for victim in chosen]
    crossing, own = max(crossing for crossing, _ in gradients), min(own for _, own in gradients)
    return _summarize_observations(_observed_quantity(path), seen, crossing, own)


def measure_leak(path: Path, batch: LeakBatch, victims: Iterable[int]) -> dict[str, Any]:
    """Measure forward isolation, and stop at the first leak: enough to detect a planted fault."""
    watch = _observer(path, batch)
    seen: list[Observation] = []
    for victim in victims:
        seen.append(watch(victim))
        if seen[-1].moved.any():
            break
    return _summarize_observations(_observed_quantity(path), seen, crossing=0.0, own=1.0)


def measure_padding(path: Path, batch: LeakBatch) -> dict[str, Any]:
    """Change the padding, then append empty segments; measure the effect on real tokens, which must be 0."""
    tokens = batch.positions_outside(None)
    before = path.hidden(batch)[tokens]
    noise = largest_magnitude(absolute_difference(path.hidden(batch)[tokens], before))
    changed = [batch.with_other_padding()]
    bounds = batch.inputs["cu_seqlens"]
    if bounds is not None:
        changed.append(batch.with_inputs(cu_seqlens=torch.cat([bounds, bounds[-1:].expand(SPARE_SLOTS)])))
    moved = [absolute_difference(path.hidden(other)[tokens], before) for other in changed]
    seen = [Observation(each, responds=True, noise=noise) for each in moved]
    gradient = path.gradients(changed[0], batch.labels(tokens))[1]["model.encoder.weight"]
    crossing = largest_magnitude(gradient[batch.own_ids(len(batch.places))])
    return _summarize_observations("hidden states", seen, crossing, own=largest_magnitude(gradient))


def _observed_quantity(path: Path) -> str:
    return "the loss" if path.is_compiled else "hidden states"


def _summarize_observations(
    observed: str, seen: Sequence[Observation], crossing: float, own: float
) -> dict[str, Any]:
    """Return the summary of all observations as JSON values.

    `crossing` is the largest gradient that crosses segments, `own` the smallest gradient within segments.
    """
    return {
        "observed": observed,
        "victims": len(seen),
        "responding": sum(each.responds for each in seen),
        "leaked_tokens": sum(int(each.moved.any(-1).sum()) for each in seen),
        "largest_leak": max((largest_magnitude(each.moved) for each in seen), default=0.0),
        "largest_cross_gradient": crossing,
        "smallest_own_gradient": own,
        "unstable": max((each.noise for each in seen), default=0.0),
    }


def _observer(path: Path, batch: LeakBatch) -> Callable[[int], Observation]:
    """Return the function that observes the change of one segment, given its index.

    It compares the loss of a compiled path, and the hidden states of any other.
    """
    if path.is_compiled:
        return partial(_observe_loss, path, batch)
    return partial(_observe_hidden_states, path, batch, path.hidden(batch))


def _observe_hidden_states(path: Path, batch: LeakBatch, before: Tensor, victim: int) -> Observation:
    """Change the segment `victim`; compare the hidden states [T, D] with `before`, the unchanged pass."""
    others = batch.positions_outside(victim)
    again = path.hidden(batch)
    after = path.hidden(batch.with_other_tokens(victim))
    moved = absolute_difference(after, before)
    responds = bool(moved[batch.places[victim]].any())
    return Observation(moved[others], responds, largest_magnitude(absolute_difference(again, before)))


def _observe_loss(path: Path, batch: LeakBatch, victim: int) -> Observation:
    """Change the segment `victim`; compare the loss on the other segments' targets and on its own targets.

    For compiled paths: a compiled step returns only the loss.
    """
    labels = batch.labels(batch.positions_outside(victim))
    own_labels = batch.labels(batch.places[victim])
    changed = batch.with_other_tokens(victim)
    before, again = (path.loss(batch, labels).detach() for _ in range(2))
    after = path.loss(changed, labels).detach()
    own = path.loss(changed, own_labels).detach() - path.loss(batch, own_labels).detach()
    return Observation(
        absolute_difference(after, before)[None, None],
        bool(own),
        largest_magnitude(absolute_difference(again, before)),
    )


def _cross_gradient(path: Path, batch: LeakBatch, victim: int) -> tuple[float, float]:
    """Return the largest embedding gradient of the other segments' loss, for its own token ids and for all.

    The first must be 0: the victim's token ids occur in no other segment.
    """
    labels = batch.labels(batch.positions_outside(victim))
    gradient = path.gradients(batch, labels)[1]["model.encoder.weight"]
    crossing = largest_magnitude(gradient[batch.own_ids(victim)])
    return crossing, largest_magnitude(gradient)


SHORTEST, LONGEST = 16, 300
"""Limits of segment lengths, in tokens: in longer segments rounding may hide the effect of one token."""


def declared_direction(path: Path) -> str:
    """Return "causal" if the model's config sets transformers' `is_causal`, else "bidirectional"."""
    return "causal" if getattr(path.model.config, "is_causal", False) else "bidirectional"


def short_documents(batch: LeakBatch, victims: Iterable[int]) -> list[int]:
    """Return the segments among `victims` that have `SHORTEST` to `LONGEST` tokens."""
    return [number for number in victims if SHORTEST <= batch.lengths[number] <= LONGEST]


def measure_direction(path: Path, batch: LeakBatch, victims: Iterable[int]) -> dict[str, int]:
    """Count the documents whose first token attends to later tokens, and whose last attends to earlier ones.

    The second half of a document is changed and its first token compared, then the first half and the last
    token.
    """
    before = path.hidden(batch)
    chosen = short_documents(batch, victims)
    early, late = 0, 0
    for number in chosen:
        places = batch.places[number]
        half = slice(len(places) // 2, None)
        after = path.hidden(batch.with_other_tokens(number, half))
        early += bool((after[places[0]] != before[places[0]]).any())
        after = path.hidden(batch.with_other_tokens(number, slice(0, len(places) // 2)))
        late += bool((after[places[-1]] != before[places[-1]]).any())
    return {"documents": len(chosen), "early_moved": early, "late_moved": late}


def measure_repeats(path: Path, batch: LeakBatch) -> dict[str, Any]:
    """Run the same step twice; compare the loss and the gradient of every parameter bit for bit."""
    labels = batch.labels(batch.positions_outside(None))
    loss, first = path.gradients(batch, labels)
    first = {name: gradient.clone() for name, gradient in first.items()}
    again, second = path.gradients(batch, labels)
    moved = {name: largest_magnitude(absolute_difference(second[name], first[name])) for name in first}
    sizes = {name: largest_magnitude(gradient) for name, gradient in first.items()}
    return {
        "loss_moved": largest_magnitude(absolute_difference(again, loss)),
        "tensors_moved": sum(amount > 0 for amount in moved.values()),
        "moved": sorted(name for name, amount in moved.items() if amount > 0),
        "gradient_moved": max(finite_or_infinity(moved[name] / (sizes[name] or 1.0)) for name in moved),
    }
