"""Blocks and heads of transformers encoders, by architecture. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from neobert.families.backbone import Head
from neobert.optim.fused_rows import GATE_UP, PROJECTION, STACKED_QKV, WHOLE, Layout

BARE, MASKED, TEXTS, TOKENS = (
    "AutoModel",
    "AutoModelForMaskedLM",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
)


CLASSIFIER_POOLING = {"cls": "cls", "avg": "mean"}
"""Poolings of a ModernBERT, by their names in this project."""
OWN_POOLING = {theirs: own for own, theirs in CLASSIFIER_POOLING.items()}


class Parts(NamedTuple):
    """Functions of a model of one architecture.

    Attributes:
        blocks: returns the blocks.
        heads: return the head, by the auto class of the model.
        layouts: return the layouts of a block's matrices by name, given the number of heads.
    """

    blocks: Callable[[Any], nn.ModuleList]
    heads: Mapping[str, Callable[[Any], Head]]
    layouts: Callable[[int], dict[str, Layout]]


def _bert_of_texts(model: Any) -> Head:
    def transform(pooled: Tensor) -> Tensor:
        pooler = model.bert.pooler
        features: Tensor = model.dropout(pooler.activation(pooler.dense(pooled)))
        return features

    return Head(model.classifier, transform, "cls")


def _modernbert_classifier(model: Any, pooling: str | None) -> Head:
    return Head(model.classifier, lambda hidden: model.drop(model.head(hidden)), pooling)


def _of_bert(num_heads: int) -> dict[str, Layout]:
    projections = [f"attention.self.{name}.weight" for name in ("query", "key", "value")]
    others = ("attention.output.dense.weight", "intermediate.dense.weight", "output.dense.weight")
    return dict.fromkeys(projections, Layout(PROJECTION, num_heads)) | dict.fromkeys(others, Layout(WHOLE))


def _of_modernbert(num_heads: int) -> dict[str, Layout]:
    whole = dict.fromkeys(("attn.Wo.weight", "mlp.Wo.weight"), Layout(WHOLE))
    return {"attn.Wqkv.weight": Layout(STACKED_QKV, num_heads), "mlp.Wi.weight": Layout(GATE_UP)} | whole


PARTS = {
    "bert": Parts(
        lambda model: model.base_model.encoder.layer,
        {
            MASKED: lambda model: Head(model.cls.predictions.decoder, model.cls.predictions.transform),
            TEXTS: _bert_of_texts,
            TOKENS: lambda model: Head(model.classifier, model.dropout),
        },
        _of_bert,
    ),
    "modernbert": Parts(
        lambda model: model.base_model.layers,
        {
            MASKED: lambda model: Head(model.decoder, model.head),
            TEXTS: lambda model: _modernbert_classifier(model, OWN_POOLING[model.config.classifier_pooling]),
            TOKENS: lambda model: _modernbert_classifier(model, None),
        },
        _of_modernbert,
    ),
}


def blocks_of(model: Any) -> nn.ModuleList:
    """Return the blocks of a model."""
    return PARTS[model.config.model_type].blocks(model)


def layouts_of(model: Any) -> dict[str, Layout]:
    """Return the layouts of a block's matrices by their names in the block."""
    return PARTS[model.config.model_type].layouts(model.config.num_attention_heads)


def head_of(model: Any, auto_class: str) -> Head | None:
    """Return the head of a model that an auto class built; None without one."""
    return None if auto_class == BARE else PARTS[model.config.model_type].heads[auto_class](model)
