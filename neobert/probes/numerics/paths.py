"""Paths: small models with a combination of kernels, built as by the trainer, with weights that expose leaks.

Width, heads, feed-forward, kernels, precision and collator are those in the run's config. The model has two
blocks and an untied decoder, so that only the encoder contributes to the embedding's gradient.

Shapes: T tokens, M targets, D hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neobert.config import replace
from neobert.config.schedules import masking_rates
from neobert.config.schema import RunConfig
from neobert.families.neobert.build import backbone_from_model
from neobert.families.neobert.spec import model_section, with_positions
from neobert.families.table import max_row_length
from neobert.model import NeoBERTLMHead, build_model_config
from neobert.objectives import StepKernels, TokenObjective, token_objective_for
from neobert.objectives.compile import compile_objective
from neobert.probes.attention import draw_weights
from neobert.probes.numerics.leak_batch import PAD_ID, LeakBatch

NUM_LAYERS = 2


@dataclass(frozen=True, eq=False)
class Path:
    """Model, objective and kernels of one forward and backward pass.

    Attributes:
        config: the run's config with the number of layers and the batch size of the probes.
        objective: the trainer's objective, with the model, using `kernels`.
        dtype: dtype of matrix products.
    """

    config: RunConfig
    kernels: StepKernels
    objective: TokenObjective
    is_compiled: bool
    device: torch.device
    dtype: torch.dtype

    @property
    def model(self) -> NeoBERTLMHead:
        """Model of this path, with fp32 parameters."""
        assert isinstance(self.objective.model, NeoBERTLMHead)
        return self.objective.model

    @property
    def weights(self) -> dict[str, Tensor]:
        """Parameters of the model, by name."""
        return dict(self.model.named_parameters())

    def precision(self) -> AbstractContextManager[Any]:
        """Return the autocast context of the trainer's precision; disabled if the run computes in fp32."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def hidden(self, batch: LeakBatch) -> Tensor:
        """Return the hidden states [T, D] before the decoder, detached.

        The forward pass runs with gradients enabled: without them, another kernel or compiled graph may run.
        """
        with self.precision():
            return self.objective.encode(batch.inputs).detach()

    def logits(self, batch: LeakBatch, labels: Tensor) -> Tensor:
        """Return the logits [M, V] of the labelled tokens, detached, in fp64."""
        places = torch.cat(batch.places)
        rows = places[labels.flatten()[places] >= 0]
        with self.precision():
            return self.objective.logits(self.objective.encode(batch.inputs)[rows]).detach().double()

    def loss(self, batch: LeakBatch, labels: Tensor) -> Tensor:
        """Return the loss summed over the labelled tokens, with its autograd graph."""
        num_targets = int((labels >= 0).sum())
        with self.precision():
            loss: Tensor = self.objective(num_targets, labels, **batch.inputs)
        return loss

    def gradients(self, batch: LeakBatch, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the summed loss, detached, and its gradient for each parameter, by name."""
        self.model.zero_grad(set_to_none=True)
        loss = self.loss(batch, labels)
        loss.backward()
        found = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        return loss.detach(), found


def probe_config(config: RunConfig, num_rows: int) -> RunConfig:
    """Return the run's config with `NUM_LAYERS` layers, batch size `num_rows`, and no compilation."""
    changes = {
        "model.num_hidden_layers": NUM_LAYERS,
        "model.tie_word_embeddings": False,
        "model.pretrained_checkpoint": None,
        "trainer.per_device_train_batch_size": num_rows,
        "trainer.torch_compile": False,
        "trainer.cuda_graphs": False,
    }
    for key, value in changes.items():
        config = replace(config, key, value)
    return config


def build_path(
    config: RunConfig,
    kernels: StepKernels,
    vocab_size: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    is_compiled: bool = False,
    has_initial_weights: bool = False,
) -> Path:
    """Build a path with weights that expose leaks, or with the initial weights of training."""
    torch.manual_seed(config.seed)
    section = with_positions(model_section(config), max_row_length(config))
    shape = build_model_config(section, vocab_size, PAD_ID, kernels.model_attention, kernels.modules)
    with device:  # drawing 60 million weights on one core of the host takes seconds
        model = NeoBERTLMHead(shape)
        if not has_initial_weights:
            draw_weights(model, shape.embedding_multiplier, config.seed)
    if config.trainer.gradient_checkpointing:
        model.enable_gradient_checkpointing(config.trainer.gradient_checkpointing_every_n)
    variant = replace(config, "trainer.torch_compile", is_compiled)
    backbone = backbone_from_model(model.to(device), kernels)
    rates, targets_only = masking_rates(config.datacollator), config.trainer.masked_logits_only_loss
    objective = token_objective_for(variant, backbone, device.type, rates, targets_only=targets_only)
    compile_objective(variant, objective)
    return Path(config, kernels, objective, is_compiled, device, dtype)


UNBOUNDED = 1e30
"""Value that replaces infinity and NaN, which JSON lacks; larger than any limit."""


def finite_or_infinity(value: float) -> float:
    """Limit a value to `UNBOUNDED`; infinity and NaN also become `UNBOUNDED`."""
    return float(value) if math.isfinite(value) and value < UNBOUNDED else UNBOUNDED


def largest_magnitude(tensor: Tensor) -> float:
    """Return the largest absolute value in a tensor, at most `UNBOUNDED`; 0 if it is empty."""
    return finite_or_infinity(tensor.abs().max().item()) if tensor.numel() else 0.0


def absolute_difference(after: Tensor, before: Tensor) -> Tensor:
    """Return `after - before` elementwise, with 0 where both are NaN and NaN where one is."""
    return torch.where((after == before) | (after.isnan() & before.isnan()), 0.0, after.float() - before)
