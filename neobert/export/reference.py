"""Reference outputs of the model, with which the outputs of an exported folder are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from neobert.export.source import Source
from neobert.model.heads import pool

LIMIT = 1e-5
"""Largest accepted difference in fp32, relative to the largest absolute value (at least 1)."""

SPAN_HEAD, CHOICE_HEAD = "ForQuestionAnswering", "ForMultipleChoice"
"""Class-name suffixes of models with other inputs or outputs than logits of texts or tokens."""

TEXTS = (
    "An encoder reads the whole text.",
    "Short.",
    "Café, naïve, 3,141 and (brackets): 100% — tokenised as it was in training!",
    "The longest of these texts is repeated until it comes near the longest row of the model. " * 12,
)
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Reference:
    """Texts of mixed lengths, and the model's outputs for them as one padded batch.

    Attributes:
        outputs: input_ids and attention_mask [B, S], last_hidden_state [B, S, D] (zero where padded), and
            pooled [B, D] and logits ([B, S, outputs] or [B, outputs]) if the model has them.
    """

    texts: list[str]
    outputs: Arrays


def make_reference(source: Source) -> Reference:
    """Return the model's outputs for `TEXTS`, truncated to 128 tokens, or to a lower limit of the model."""
    limit = min(128, int(source.tokenizer.model_max_length))
    if source.embedding is not None:
        limit = min(limit, source.embedding.max_length)
    texts = [truncate_to_fit(text, source.tokenizer, limit) for text in TEXTS]
    batch = source.tokenizer(texts, padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        hidden = source.encoder(ids, attention_mask=mask, return_dict=True).last_hidden_state
        tensors = {"input_ids": ids, "attention_mask": mask, "last_hidden_state": hidden * mask[..., None]}
        if source.embedding is not None:
            pooled = pool(hidden, mask, source.embedding.pooling)
            tensors["pooled"] = F.normalize(pooled, dim=-1) if source.embedding.normalizes else pooled
        if source.model is not source.encoder:
            tensors["logits"] = compute_logits(source.model, ids, mask)
    return Reference(texts, {name: tensor.numpy() for name, tensor in tensors.items()})


def compute_logits(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the logits; per-token logits are zero at padding, which other libraries may omit.

    The logits of a span's first and last token are stacked. A multiple-choice model gets one choice per row.
    """
    rows = (ids[:, None], mask[:, None]) if type(model).__name__.endswith(CHOICE_HEAD) else (ids, mask)
    outputs = model(input_ids=rows[0], attention_mask=rows[1], return_dict=True)
    logits: torch.Tensor = (
        torch.stack([outputs.start_logits, outputs.end_logits], -1)
        if "start_logits" in outputs
        else outputs.logits
    )
    return logits * mask[..., None] if logits.dim() == 3 else logits


def truncate_to_fit(text: str, tokenizer: PreTrainedTokenizerFast, limit: int) -> str:
    """Truncate a text by words, then by letters, to at most `limit` tokens, including special tokens."""

    def is_too_long(words: list[str]) -> bool:
        return len(tokenizer.backend_tokenizer.encode(" ".join(words)).ids) > limit

    words = text.split()
    while len(words) > 1 and is_too_long(words):
        words = words[: -max(1, len(words) // 8)]
    while words[0] and is_too_long(words):
        words = [words[0][:-1]]
    return " ".join(words)


def output_gaps(expected: Mapping[str, NDArray[Any]], actual: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """Return each output's largest difference, scaled as `LIMIT`; infinite if missing, reshaped or NaN."""
    return {name: _difference(array, actual.get(name)) for name, array in expected.items()}


def _difference(expected: NDArray[Any], actual: NDArray[Any] | None) -> float:
    if actual is None or expected.shape != actual.shape:
        return float("inf")
    gap = np.abs(expected.astype(np.float64) - actual.astype(np.float64)).max(initial=0.0)
    # NaN would pass any limit: NaN > limit is false.
    if np.isnan(gap):
        return float("inf")
    scale = 1.0 if expected.dtype.kind in "iu" else max(1.0, float(np.abs(expected).max(initial=0.0)))
    return float(gap) / scale
