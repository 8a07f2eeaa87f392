"""Blocks and heads of transformers models, by the table of architectures. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN

from neobert.families.backbone import Head
from neobert.families.hf.architecture import BARE, Architecture, head_parts
from neobert.families.hf.architectures.table import ARCHITECTURES
from neobert.families.hf.heads import heads_by_auto_class, takes_texts
from neobert.families.hf.settings import Settings

Step = Callable[[Tensor], Tensor]


def model_architecture(model: Any) -> Architecture:
    """Return the description of a model's architecture, by its model_type."""
    return ARCHITECTURES[model.config.model_type]


def first_position(model: Any) -> int:
    """Return the index in the position embedding that a first token uses, or 0 for an unknown model type."""
    known = ARCHITECTURES.get(model.config.model_type)
    return 0 if known is None else known.first_position(Settings(model.config.to_dict(), "", ""))


def model_blocks(model: Any) -> nn.ModuleList:
    """Return the transformer blocks of a model, in order."""
    blocks: nn.ModuleList = model.base_model.get_submodule(model_architecture(model).blocks)
    return blocks


def model_head(model: Any, auto_class: str) -> Head | None:
    """Return the head of a model that an auto class built, or None if that has no head."""
    if auto_class == BARE:
        return None
    path = heads_by_auto_class(model.config.model_type)[auto_class]
    steps = [_build_step(model, each) for each in path.steps]

    def transform(hidden: Tensor) -> Tensor:
        for step in steps:
            hidden = step(hidden)
        return hidden

    pooling = _configured_pooling(model, model_architecture(model)) if takes_texts(auto_class) else None
    softcap = getattr(model.config, path.softcap) if path.softcap else None
    return Head(model.get_submodule(path.linear), transform, pooling, softcap)


def head_prefixes(model: Any, auto_class: str) -> tuple[str, ...]:
    """Return the name prefixes of the weights of a head, or an empty tuple if there is no head."""
    if auto_class == BARE:
        return ()
    path = heads_by_auto_class(model.config.model_type)[auto_class]
    return tuple(f"{part}." for part in head_parts(model_architecture(model).prefix, path))


def _build_step(model: Any, name: str) -> Step:
    if name == "dropout":
        # Of the task: some architectures read the probability of the blocks, or have no dropout here.
        probability = getattr(model.config, "classifier_dropout", None) or 0.0
        return lambda hidden: F.dropout(hidden, probability, training=model.training)
    if name.startswith("="):
        activation: Step = ACT2FN[getattr(model.config, name[1:], name[1:])]
        return activation
    if name[0] in "*/":
        value = float(getattr(model.config, name[1:]))
        factor = value if name[0] == "*" else 1 / value
        return lambda hidden: hidden * factor
    module: Step = model.get_submodule(name)
    return module


def _configured_pooling(model: Any, architecture: Architecture) -> str:
    by_theirs = {theirs: own for own, theirs in architecture.poolings.items()}
    first, *_ = architecture.poolings
    return by_theirs.get(getattr(model.config, "classifier_pooling", ""), first)
