"""Isolation by exactness: what happens in one segment moves no bit of another, forward or backward.

A tolerance cannot tell one leaked key from rounding; equality on identical shapes can. What two identical
passes differ by is measured first: a kernel that does not repeat itself is never taken for one that leaks.

Shapes: T token places, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neobert.probes.numerics.comparison import difference, largest
from neobert.probes.numerics.leak_batch import SPARE_SLOTS, Specimen
from neobert.probes.numerics.paths import Path

NUM_VICTIMS = 12


class Seen(NamedTuple):
    """One victim disturbed: how the others moved, whether its own did, and what a repeat differs by."""

    moved: Tensor
    responds: bool
    noise: float


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
    crossing, own = max(crossing for crossing, _ in gradients), min(own for _, own in gradients)
    return _sum_up(_observed(path), seen, crossing, own)


def measure_leak(path: Path, specimen: Specimen, victims: Iterable[int]) -> dict[str, Any]:
    """Do the same without gradients, and only as far as the first leak: enough to see a planted one."""
    watch = _watcher(path, specimen)
    seen: list[Seen] = []
    for victim in victims:
        seen.append(watch(victim))
        if seen[-1].moved.any():
            break
    return _sum_up(_observed(path), seen, crossing=0.0, own=1.0)


def measure_padding(path: Path, specimen: Specimen) -> dict[str, Any]:
    """Fill the padding with tokens, and add empty slots: no token may notice."""
    tokens = specimen.places_outside(None)
    before = path.hidden(specimen)[tokens]
    noise = largest(difference(path.hidden(specimen)[tokens], before))
    changed = [specimen.with_other_padding()]
    bounds = specimen.inputs["cu_seqlens"]
    if bounds is not None:
        changed.append(specimen.with_inputs(cu_seqlens=torch.cat([bounds, bounds[-1:].expand(SPARE_SLOTS)])))
    seen = [Seen(difference(path.hidden(other)[tokens], before), True, noise) for other in changed]
    gradient = path.gradients(changed[0], specimen.labels(tokens))[1]["model.encoder.weight"]
    crossing = largest(gradient[specimen.own_ids(len(specimen.places))])
    return _sum_up("hidden states", seen, crossing, own=largest(gradient))


def _observed(path: Path) -> str:
    return "the loss" if path.is_compiled else "hidden states"


def _sum_up(observed: str, seen: Sequence[Seen], crossing: float, own: float) -> dict[str, Any]:
    """Put together what was seen of each victim, the largest gradient that crossed and the smallest own."""
    return {
        "observed": observed,
        "victims": len(seen),
        "responding": sum(each.responds for each in seen),
        "leaked_tokens": sum(int(each.moved.any(-1).sum()) for each in seen),
        "largest_leak": max((largest(each.moved) for each in seen), default=0.0),
        "largest_cross_gradient": crossing,
        "smallest_own_gradient": own,
        "unstable": max((each.noise for each in seen), default=0.0),
    }


def _watcher(path: Path, specimen: Specimen) -> Callable[[int], Seen]:
    """Return what watches a path while a victim is disturbed. The undisturbed pass is each victim's."""
    if path.is_compiled:
        return partial(_watch_loss, path, specimen)
    return partial(_watch_hidden, path, specimen, path.hidden(specimen))


def _watch_hidden(path: Path, specimen: Specimen, before: Tensor, victim: int) -> Seen:
    """Look at the hidden states."""
    others = specimen.places_outside(victim)
    again = path.hidden(specimen)
    after = path.hidden(specimen.with_other_tokens(victim))
    moved = difference(after, before)
    responds = bool(moved[specimen.places[victim]].any())
    return Seen(moved[others], responds, largest(difference(again, before)))


def _watch_loss(path: Path, specimen: Specimen, victim: int) -> Seen:
    """Look at the loss of the others' targets, and of the victim's: a compiled step shows nothing else."""
    labels = specimen.labels(specimen.places_outside(victim))
    own_labels = specimen.labels(specimen.places[victim])
    changed = specimen.with_other_tokens(victim)
    before, again = (path.loss(specimen, labels).detach() for _ in range(2))
    after = path.loss(changed, labels).detach()
    own = path.loss(changed, own_labels).detach() - path.loss(specimen, own_labels).detach()
    return Seen(difference(after, before)[None, None], bool(own), largest(difference(again, before)))


def _cross_gradient(path: Path, specimen: Specimen, victim: int) -> tuple[float, float]:
    """Return the largest gradient of the others' loss by the victim's tokens, and by their own."""
    labels = specimen.labels(specimen.places_outside(victim))
    gradient = path.gradients(specimen, labels)[1]["model.encoder.weight"]
    crossing = largest(gradient[specimen.own_ids(victim)])
    return crossing, largest(gradient)
