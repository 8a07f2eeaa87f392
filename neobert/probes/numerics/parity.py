"""Parity: how far the packed path is from the truth, in units of what its precision costs without packing.

Errors are taken against fp64 formulas, document by document; the unit is the error of the same formulas in
the run's own precision. A fixed tolerance would pass a small model that is contaminated from end to end.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neobert.probes.numerics import reference
from neobert.probes.numerics.comparison import UNBOUNDED, finite
from neobert.probes.numerics.leak_batch import Specimen
from neobert.probes.numerics.paths import Path

Errors = dict[str, float]


class Yardstick:
    """The truth about a specimen, and how far the plain formulas in the run's precision are from it.

    It depends on the weights and on no kernel, so that all paths with the same weights may share it.
    """

    def __init__(self, path: Path, specimen: Specimen) -> None:
        labels = specimen.labels(specimen.places_outside(None))
        weights, config = path.weights, path.model.config
        self._weights = {name: weight.detach().clone() for name, weight in weights.items()}
        self.truth = reference.answer(weights, config, specimen, labels, torch.float64)
        plain = reference.answer(weights, config, specimen, labels, path.dtype)
        self.forward = _logit_errors(plain.logits, self.truth.logits)
        self.backward = _gradient_errors(plain.gradients, self.truth)

    def is_of(self, path: Path) -> bool:
        """Say whether no bit of a path's weights differs from those that were measured with."""
        held = path.weights
        return held.keys() == self._weights.keys() and all(
            torch.equal(held[name], weight) for name, weight in self._weights.items()
        )


def measure_parity(path: Path, specimen: Specimen, yardstick: Yardstick) -> dict[str, Any]:
    """Return ratios of largest and mean errors, of logits and gradients; a compiled path has no logits."""
    labels = specimen.labels(specimen.places_outside(None))
    loss, gradients = path.gradients(specimen, labels)
    backward = _gradient_errors(gradients, yardstick.truth)
    found = {
        "is_finite": bool(loss.isfinite()) and all(bool(g.isfinite().all()) for g in gradients.values()),
        "forward_max_ratio": None,
        "forward_mean_ratio": None,
        "backward_max_ratio": _ratio(backward["max"], yardstick.backward["max"]),
        "backward_mean_ratio": _ratio(backward["mean"], yardstick.backward["mean"]),
    }
    if not path.is_compiled:
        forward = _logit_errors(path.logits(specimen, labels), yardstick.truth.logits)
        found["forward_max_ratio"] = _ratio(forward["max"], yardstick.forward["max"])
        found["forward_mean_ratio"] = _ratio(forward["mean"], yardstick.forward["mean"])
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
