"""A model as tasks, optimizers and probes see it, and its construction. Imports torch.

`Family.module` names a module with a function `build` of the signature of `build_backbone`. Importing it
registers the family's classes with transformers, which load its checkpoints for inference; its function
`inference_backbone(model, device, dtype)` returns the backbone of such a model over packed rows.

Shapes: T packed tokens, B rows, S row length, D hidden size, M rows of the head, V outputs of the head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from neobert.config.schema import RunConfig
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.errors import ProjectError
from neobert.export.weights import LoadReport
from neobert.families.family import Family
from neobert.families.hf.architecture import VOCABULARY_HEADS
from neobert.families.linear import Layout
from neobert.families.table import model_family, model_shape, unsupported_keys
from neobert.parallel import World

MAX_MISCOUNT = 0.01
"""Largest relative error of the planned number of parameters: settings may add a bias or a norm."""


@dataclass(frozen=True, slots=True)
class Head:
    """Head that computes logits [M, V] from final hidden states or pooled vectors [M, D].

    Attributes:
        linear: last layer.
        transform: computation before the last layer.
        pooling: avg, cls or max: the head takes one vector per document; None: it takes tokens.
        softcap: logits are softcap * tanh(logit / softcap); None: unchanged.
    """

    linear: nn.Linear
    transform: Callable[[Tensor], Tensor] = lambda hidden: hidden
    pooling: str | None = None
    softcap: float | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the logits [M, V] of rows [M, D]."""
        # Not through the layer's forward: it may be in parts, and the loss around it has them gathered.
        hidden, weight, bias = self.transform(hidden), self.linear.weight, self.linear.bias
        # A score is computed in fp32: around 30, values of bf16 are 0.125 apart.
        if self.linear.out_features > 1:
            logits = F.linear(hidden, weight, bias)
        else:
            with torch.autocast(hidden.device.type, enabled=False):
                logits = F.linear(hidden.float(), weight.float(), None if bias is None else bias.float())
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    """A model with random weights, on the CPU, in fp32.

    Attributes:
        model: module whose weights checkpoints contain.
        blocks: the transformer blocks, in order.
        hidden: returns the final hidden states, [T, D] or [B * S, D], for inputs as `RankData.inputs` returns
            them.
        plain: returns the final hidden states [S, D] of one document [S] by attention as a formula, without
            this project's kernels. Probes compare `hidden` with it.
        head: the model's head; None if it has none.
        attention: name of the attention kernel, as `Objective.attention_used` reports it.
        attention_reason: why this kernel was chosen.
        load: loads the initial weights of a fresh run in place, strictly, and reports what was not loaded.
            Raises `ProjectError` if they do not fit.
        ends: modules outside the blocks that share no parameter with others; FSDP2 shards them as units.
        matrix_layouts: layouts of a block's matrices by their names in the block, for Muon; empty: Muon is
            refused.
        head_parts: name prefixes of the weights that a checkpoint of another task may lack.
        first_position: position id that the model receives for the first token of a document.
        token_objective: class of the objective of tokens with this family's kernels; None: `TokenObjective`.
        kernels: name of the kernels of its blocks in a step.
        identity: digests of inputs of the model other than the config; they must be equal on resume.
        logged_metrics: returns the model's own metrics over all ranks, for a line of training metrics.
    """

    model: PreTrainedModel
    blocks: Sequence[nn.Module]
    hidden: Callable[[Mapping[str, Any]], Tensor]
    plain: Callable[[Tensor], Tensor]
    head: Head | None
    attention: str
    load: Callable[[Path], LoadReport]
    attention_reason: str = ""
    ends: Sequence[nn.Module] = ()
    matrix_layouts: Mapping[str, Layout] = field(default_factory=dict)
    head_parts: tuple[str, ...] = ()
    first_position: int = 0
    token_objective: Callable[..., Any] | None = None
    kernels: str = "torch"
    identity: Mapping[str, str] = field(default_factory=dict)
    logged_metrics: Callable[[World], Mapping[str, float]] = lambda _world: {}

    @property
    def max_length(self) -> int:
        """Maximum sequence length in tokens. RoBERTa's positions begin after the id of its padding token."""
        return int(self.model.config.max_position_embeddings) - self.first_position

    @property
    def units(self) -> list[nn.Module]:
        """Return the modules that FSDP2 shards as units (see `World.prepare`)."""
        return [*self.blocks, *self.ends]

    def layouts(self) -> dict[str, Layout]:
        """Return the layouts of the trained matrices of the blocks by their names in the model.

        Raises `ProjectError` MOD005 for a matrix without a layout; empty if none is declared.
        """
        if not self.matrix_layouts:
            return {}
        prefixes = {module: name for name, module in self.model.named_modules()}
        found = {}
        for block in self.blocks:
            for name, parameter in block.named_parameters():
                if parameter.ndim == 2 and parameter.requires_grad:
                    found[f"{prefixes[block]}.{name}"] = self._find_layout(name)
        return found

    def _find_layout(self, name: str) -> Layout:
        if name not in self.matrix_layouts:
            message = f"no layout is declared for {name} in the blocks of a {type(self.model).__name__}"
            raise ProjectError("MOD005", message, "set optimizer.name to adamw", "optimizer.name")
        return self.matrix_layouts[name]


def build_backbone(
    config: RunConfig,
    tokenizer: TokenizerBundle,
    vocab_size: int,
    world: World,
    auto_class: str,
    settings: Mapping[str, Any],
) -> Backbone:
    """Build the model that the config describes, with `vocab_size` rows in its embedding.

    Args:
        auto_class: transformers' class of the model with its head, such as AutoModelForMaskedLM.
        settings: settings of the head, as arguments of transformers' configurations; `pooling` as in `Head`.

    Raises `ProjectError` for kernels that cannot run here, and for settings that the family does not support.
    """
    family = model_family(config)
    for key, problem, hint in unsupported_keys(config):
        raise ProjectError("MOD005", f"model.type {family.name}: {problem}", hint, key)
    built: Backbone = import_module(family.module).build(
        config, tokenizer, vocab_size, world, auto_class, settings
    )
    if auto_class in VOCABULARY_HEADS:
        _refuse_other_size(built.model, model_shape(config, vocab_size).parameters.total, family)
    if config.trainer.gradient_checkpointing:
        _recompute_blocks(built.blocks, config.trainer.gradient_checkpointing_every_n)
    return built


def _refuse_other_size(model: nn.Module, planned: int, family: Family) -> None:
    """Raise `ProjectError` MOD006 if the model has another number of parameters than the plan."""
    total = sum(each.numel() for each in model.parameters())
    if abs(planned / total - 1) > MAX_MISCOUNT:
        message = f"the model has {total:,} parameters, but its shape counts {planned:,}"
        folder = "/".join(family.module.split(".")[:-1])
        raise ProjectError("MOD006", message, f"correct the shape in {folder}", "model")


def _recompute_blocks(blocks: Sequence[nn.Module], every_n: int) -> None:
    """Recompute blocks 0, n, 2n, ... in the backward pass (non-reentrant)."""
    for index, block in enumerate(blocks):
        if not isinstance(block, GradientCheckpointingLayer):
            message = f"{type(block).__name__} is not a GradientCheckpointingLayer of transformers"
            key = "trainer.gradient_checkpointing"
            raise ProjectError("MOD005", message, f"set {key} to false", key)
        # Attributes of transformers' layers: the method that sets them differs between its releases.
        block.gradient_checkpointing = index % every_n == 0
        block._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
