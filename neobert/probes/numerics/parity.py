"""Parity probe: the error of a path, as a multiple of the error of a plain implementation in its precision.

Errors are measured against an fp64 reference that computes each document separately; the unit is the error of
that reference in the run's precision. A fixed tolerance would pass a small model whose documents all leak.
The reference shares no code with the model's modules.

Shapes: T tokens, M decoded rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from neobert.data.batches.targets import IGNORED
from neobert.kernels import reference as formulas
from neobert.model import NeoBERTConfig
from neobert.probes.numerics.leak_batch import LeakBatch
from neobert.probes.numerics.paths import UNBOUNDED, Path, finite_or_infinity

Weights = Mapping[str, Tensor]

PLAIN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""SDPA's backends without cuDNN, which builds two plans (forward and backward) for each document length."""


@dataclass(frozen=True, eq=False)
class LogitsAndGradients:
    """Logits [M, V] of the labelled tokens, and the gradients of their summed cross-entropy, in fp64."""

    logits: Tensor
    gradients: dict[str, Tensor]


def plain_logits_and_gradients(
    weights: Weights, config: NeoBERTConfig, batch: LeakBatch, labels: Tensor, dtype: torch.dtype
) -> LogitsAndGradients:
    """Compute logits and gradients with plain formulas in `dtype`, each document separately."""
    held = {name: weight.detach().to(dtype).requires_grad_() for name, weight in weights.items()}
    tokens = torch.cat(batch.places)
    hidden = encode(held, config, batch.input_ids[tokens], batch.lengths)
    targets = labels.flatten()[tokens]
    has_label = targets != IGNORED
    logits = hidden[has_label] @ held["decoder.weight"].t() + held["decoder.bias"]
    wide = logits.to(torch.promote_types(dtype, torch.float32))
    loss = F.cross_entropy(wide, targets[has_label], reduction="sum")
    gradients = torch.autograd.grad(loss, list(held.values()))
    return LogitsAndGradients(
        logits.detach().double(), {name: g.double() for name, g in zip(held, gradients, strict=True)}
    )


def encode(weights: Weights, config: NeoBERTConfig, ids: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Return hidden states [T, D] after the final norm; `ids` [T] are documents of `lengths` tokens."""
    positions = torch.cat([torch.arange(length, device=ids.device) for length in lengths])
    bounds = torch.tensor([0, *accumulate(lengths)])
    x = weights["model.encoder.weight"][ids] * config.embedding_multiplier
    if not config.rope:
        x = x + weights["model.positional_embedding.weight"][positions]
        positions = torch.zeros_like(positions)  # a rotation by nothing
    for number in range(config.num_hidden_layers):
        block = _select_prefix(weights, f"model.transformer_encoder.{number}.")
        qkv = _rms_norm(x, _select_prefix(block, "attention_norm."), config) @ block["qkv.weight"].t()
        attended = formulas.attention(qkv, positions, bounds, config.num_attention_heads, config.rope_theta)
        x = x + attended @ block["wo.weight"].t()
        x = x + _feed_forward(
            _rms_norm(x, _select_prefix(block, "ffn_norm."), config), _select_prefix(block, "ffn."), config
        )
    return _rms_norm(x, _select_prefix(weights, "model.layer_norm."), config)


def _select_prefix(weights: Weights, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}


def _rms_norm(x: Tensor, weights: Weights, config: NeoBERTConfig) -> Tensor:
    if config.rms_norm:
        return formulas.rms_norm(x, weights["weight"], config.norm_eps)
    return F.layer_norm(x, x.shape[-1:], weights["weight"], weights["bias"], config.norm_eps)


def _feed_forward(x: Tensor, weights: Weights, config: NeoBERTConfig) -> Tensor:
    if config.hidden_act == "swiglu":
        return formulas.swiglu(x @ weights["w12.weight"].t()) @ weights["w3.weight"].t()
    return F.gelu(x @ weights["0.weight"].t()) @ weights["2.weight"].t()


Errors = dict[str, float]


class ReferenceErrors:
    """fp64 reference of a batch, and the errors of the same formulas in the run's precision.

    They depend on the weights but not on kernels, so all paths with the same weights share them.
    """

    def __init__(self, path: Path, batch: LeakBatch) -> None:
        labels = batch.labels(batch.positions_outside(None))
        weights, config = path.weights, path.model.config
        self._weights = {name: weight.detach().clone() for name, weight in weights.items()}
        with sdpa_kernel(PLAIN):
            self.truth = plain_logits_and_gradients(weights, config, batch, labels, torch.float64)
            plain = plain_logits_and_gradients(weights, config, batch, labels, path.dtype)
        self.forward = _logit_errors(plain.logits, self.truth.logits)
        self.backward = _gradient_errors(plain.gradients, self.truth)

    def has_same_weights(self, path: Path) -> bool:
        """Return whether the weights of `path` equal the reference's weights bit for bit."""
        held = path.weights
        return held.keys() == self._weights.keys() and all(
            torch.equal(held[name], weight) for name, weight in self._weights.items()
        )


def measure_parity(path: Path, batch: LeakBatch, reference_errors: ReferenceErrors) -> dict[str, Any]:
    """Return the maximum and mean errors of logits and gradients, relative to `reference_errors`.

    The logit (forward) ratios of a compiled path are None: its step returns only the loss.
    """
    labels = batch.labels(batch.positions_outside(None))
    loss, gradients = path.gradients(batch, labels)
    backward = _gradient_errors(gradients, reference_errors.truth)
    found = {
        "is_finite": bool(loss.isfinite()) and all(bool(g.isfinite().all()) for g in gradients.values()),
        "forward_max_ratio": None,
        "forward_mean_ratio": None,
        "backward_max_ratio": _error_ratio(backward["max"], reference_errors.backward["max"]),
        "backward_mean_ratio": _error_ratio(backward["mean"], reference_errors.backward["mean"]),
    }
    if not path.is_compiled:
        forward = _logit_errors(path.logits(batch, labels), reference_errors.truth.logits)
        found["forward_max_ratio"] = _error_ratio(forward["max"], reference_errors.forward["max"])
        found["forward_mean_ratio"] = _error_ratio(forward["mean"], reference_errors.forward["mean"])
    return found


def _logit_errors(logits: Tensor, truth: Tensor) -> Errors:
    error = (logits - truth).abs()
    return {"max": error.max().item(), "mean": error.mean().item()}


def _gradient_errors(gradients: dict[str, Tensor], truth: LogitsAndGradients) -> Errors:
    """Return maximum and mean, over the parameters, of norm(gradient error) / norm(reference gradient)."""
    errors = [
        ((gradients[name].double() - wanted).norm() / wanted.norm()).item()
        for name, wanted in truth.gradients.items()
        if wanted.any()
    ]
    return {"max": max(errors), "mean": sum(errors) / len(errors)}


def _error_ratio(error: float, unit: float) -> float:
    if unit:
        return finite_or_infinity(error / unit)
    return UNBOUNDED if error else 0.0
