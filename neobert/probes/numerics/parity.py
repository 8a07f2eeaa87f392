"""Parity probe: the error of the packed path, in units of the error of plain formulas in its precision.

Errors are taken against fp64 formulas, document by document; the unit is the error of the same formulas in
the run's own precision. A fixed tolerance would pass a small model that is contaminated from end to end.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neobert.probes.numerics import reference
from neobert.probes.numerics.comparison import UNBOUNDED, finite
from neobert.probes.numerics.leak_batch import LeakBatch
from neobert.probes.numerics.paths import Path

Errors = dict[str, float]


class ReferenceErrors:
    """The fp64 results of a batch, and the errors of plain formulas in the run's precision.

    It depends on the weights and on no kernel, so that all paths with the same weights may share it.
    """

    def __init__(self, path: Path, batch: LeakBatch) -> None:
        labels = batch.labels(batch.places_outside(None))
        weights, config = path.weights, path.model.config
        self._weights = {name: weight.detach().clone() for name, weight in weights.items()}
        self.truth = reference.answer(weights, config, batch, labels, torch.float64)
        plain = reference.answer(weights, config, batch, labels, path.dtype)
        self.forward = _logit_errors(plain.logits, self.truth.logits)
        self.backward = _gradient_errors(plain.gradients, self.truth)

    def is_of(self, path: Path) -> bool:
        """Return whether a path has these weights, bit by bit."""
        held = path.weights
        return held.keys() == self._weights.keys() and all(
            torch.equal(held[name], weight) for name, weight in self._weights.items()
        )


def measure_parity(path: Path, batch: LeakBatch, reference_errors: ReferenceErrors) -> dict[str, Any]:
    """Return ratios of largest and mean errors, of logits and gradients; a compiled path has no logits."""
    labels = batch.labels(batch.places_outside(None))
    loss, gradients = path.gradients(batch, labels)
    backward = _gradient_errors(gradients, reference_errors.truth)
    found = {
        "is_finite": bool(loss.isfinite()) and all(bool(g.isfinite().all()) for g in gradients.values()),
        "forward_max_ratio": None,
        "forward_mean_ratio": None,
        "backward_max_ratio": _ratio(backward["max"], reference_errors.backward["max"]),
        "backward_mean_ratio": _ratio(backward["mean"], reference_errors.backward["mean"]),
    }
    if not path.is_compiled:
        forward = _logit_errors(path.logits(batch, labels), reference_errors.truth.logits)
        found["forward_max_ratio"] = _ratio(forward["max"], reference_errors.forward["max"])
        found["forward_mean_ratio"] = _ratio(forward["mean"], reference_errors.forward["mean"])
    return found


def _logit_errors(logits: Tensor, truth: Tensor) -> Errors:
    error = (logits - truth).abs()
    return {"max": error.max().item(), "mean": error.mean().item()}


def _gradient_errors(gradients: dict[str, Tensor], truth: reference.Answer) -> Errors:
    """Measure each parameter's gradient relative to its own length; the largest, and the mean of them."""
    errors = [
        ((gradients[name].double() - wanted).norm() / wanted.norm()).item()
        for name, wanted in truth.gradients.items()
        if wanted.any()
    ]
    return {"max": max(errors), "mean": sum(errors) / len(errors)}


def _ratio(error: float, unit: float) -> float:
    if unit:
        return finite(error / unit)
    return UNBOUNDED if error else 0.0
