"""Isolation by exactness: what happens in one segment moves no bit of another, forward or backward.

A tolerance cannot tell one leaked key from rounding; equality on identical shapes can. What two identical
passes differ by is measured first: a kernel that does not repeat itself is never taken for one that leaks.

Shapes: T token places, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neobert.probes.numbers import largest
from neobert.probes.paths import Path
from neobert.probes.specimen import SPARE_SLOTS, Specimen

NUM_VICTIMS = 12

Seen = tuple[Tensor, bool, float]


def choose_victims(specimen: Specimen) -> tuple[int, ...]:
    """Return the segments to disturb: every edge length, the longest, and the last before the padding."""
    count = len(specimen.places)
    return tuple(sorted({*range(min(NUM_VICTIMS, count)), count - 1}))


def measure_isolation(path: Path, specimen: Specimen, victims: Iterable[int]) -> dict[str, Any]:
    """Disturb one segment after another; count the tokens elsewhere that move, and gradients that cross."""
    watch = _watcher(path, specimen)
    chosen = tuple(victims)
    seen = [watch(victim) for victim in chosen]
    gradients = [_cross_gradient(path, specimen, victim) for victim in chosen]
    return {
        "observed": "the loss" if path.is_compiled else "hidden states",
        "victims": len(chosen),
        "responding": sum(responds for _, responds, _ in seen),
        "leaked_tokens": sum(int(moved.any(-1).sum()) for moved, _, _ in seen),
        "largest_leak": max(largest(moved) for moved, _, _ in seen),
        "largest_cross_gradient": max(crossing for crossing, _ in gradients),
        "smallest_own_gradient": min(own for _, own in gradients),
        "unstable": max(noise for _, _, noise in seen),
    }


def measure_leak(path: Path, specimen: Specimen, victims: Iterable[int]) -> dict[str, Any]:
    """Do the same without gradients, and only as far as the first leak: enough to see a planted one."""
    watch = _watcher(path, specimen)
    moved, responds, noise, count = torch.zeros(1, 1), False, 0.0, 0
    for count, victim in enumerate(victims, 1):  # noqa: B007  what was reached is reported
        moved, responds, noise = watch(victim)
        if moved.any():
            break
    return {
        "observed": "the loss" if path.is_compiled else "hidden states",
        "victims": count,
        "responding": count if responds else 0,
        "leaked_tokens": int(moved.any(-1).sum()),
        "largest_leak": largest(moved),
        "largest_cross_gradient": 0.0,
        "smallest_own_gradient": 1.0,
        "unstable": noise,
    }


def measure_padding(path: Path, specimen: Specimen) -> dict[str, Any]:
    """Fill the padding with tokens, and add empty slots: no token may notice."""
    tokens = specimen.places_outside(None)
    before = path.hidden(specimen)[tokens]
    noise = largest(path.hidden(specimen)[tokens] - before)
    changed = [specimen.with_other_padding()]
    bounds = specimen.inputs["cu_seqlens"]
    if bounds is not None:
        changed.append(specimen.with_inputs(cu_seqlens=torch.cat([bounds, bounds[-1:].expand(SPARE_SLOTS)])))
    moved = [_difference(path.hidden(other)[tokens], before) for other in changed]
    gradient = path.gradients(changed[0], specimen.labels(tokens))[1]["model.encoder.weight"]
    return {
        "observed": "hidden states",
        "victims": len(changed),
        "responding": len(changed),
        "leaked_tokens": sum(int(m.any(-1).sum()) for m in moved),
        "largest_leak": max(largest(m) for m in moved),
        "largest_cross_gradient": largest(gradient[specimen.own_ids(len(specimen.places))]),
        "smallest_own_gradient": largest(gradient),
        "unstable": noise,
    }


def _difference(after: Tensor, before: Tensor) -> Tensor:
    """Return what moved; one that is no number on both sides has not moved, on one side it has."""
    return torch.where((after == before) | (after.isnan() & before.isnan()), 0.0, after.float() - before)


def _watcher(path: Path, specimen: Specimen) -> Callable[[int], Seen]:
    """Return what watches a path while a victim is disturbed. The undisturbed pass is each victim's."""
    if path.is_compiled:
        return partial(_watch_loss, path, specimen)
    return partial(_watch_hidden, path, specimen, path.hidden(specimen))


def _watch_hidden(path: Path, specimen: Specimen, before: Tensor, victim: int) -> Seen:
    """Return how the others' hidden states move, whether the victim's own do, and the noise of a repeat."""
    others = specimen.places_outside(victim)
    again = path.hidden(specimen)
    after = path.hidden(specimen.with_other_tokens(victim))
    own = _difference(after, before)[specimen.places[victim]]
    return _difference(after, before)[others], bool(own.any()), largest(_difference(again, before))


def _watch_loss(path: Path, specimen: Specimen, victim: int) -> Seen:
    """Return the same of the loss of the others' targets: a compiled step shows nothing else."""
    labels = specimen.labels(specimen.places_outside(victim))
    own_labels = specimen.labels(specimen.places[victim])
    changed = specimen.with_other_tokens(victim)
    before, again = (path.loss(specimen, labels).detach() for _ in range(2))
    after = path.loss(changed, labels).detach()
    own = path.loss(changed, own_labels).detach() - path.loss(specimen, own_labels).detach()
    return _difference(after, before)[None, None], bool(own), largest(again - before)


def _cross_gradient(path: Path, specimen: Specimen, victim: int) -> tuple[float, float]:
    """Return the largest gradient of the others' loss by the victim's tokens, and by their own."""
    labels = specimen.labels(specimen.places_outside(victim))
    gradient = path.gradients(specimen, labels)[1]["model.encoder.weight"]
    crossing = largest(gradient[specimen.own_ids(victim)])
    return crossing, largest(gradient)
