"""Determinism probe: the same step twice must give the same bits."""

from __future__ import annotations

from typing import Any

from neobert.probes.numerics.comparison import difference, finite, largest
from neobert.probes.numerics.leak_batch import LeakBatch
from neobert.probes.numerics.paths import Path


def measure_repeats(path: Path, batch: LeakBatch) -> dict[str, Any]:
    """Run two identical steps; compare their losses and the gradient of every parameter."""
    labels = batch.labels(batch.places_outside(None))
    loss, first = path.gradients(batch, labels)
    first = {name: gradient.clone() for name, gradient in first.items()}
    again, second = path.gradients(batch, labels)
    moved = {name: largest(difference(second[name], first[name])) for name in first}
    sizes = {name: largest(gradient) for name, gradient in first.items()}
    return {
        "loss_moved": largest(difference(again, loss)),
        "tensors_moved": sum(amount > 0 for amount in moved.values()),
        "moved": sorted(name for name, amount in moved.items() if amount > 0),
        "gradient_moved": max(finite(moved[name] / (sizes[name] or 1.0)) for name in moved),
    }
