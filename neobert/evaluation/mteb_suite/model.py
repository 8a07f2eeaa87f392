"""Adapter of a model folder to mteb's model interface.

Shapes: N texts, D hidden size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mteb.models.model_meta import ModelMeta, ScoringFunction
from torch import Tensor

from neobert.encoding import Encoder
from neobert.encoding.encoder import Embeddings

UNKNOWN = (
    "release_date", "languages", "memory_usage_mb", "license", "public_training_code", "public_training_data",
    "training_datasets",
)  # fmt: skip
QUERY = "query"


class MtebModel:
    """Encoder with the methods that mteb calls; `prefixes` are prepended to queries and to documents."""

    def __init__(self, encoder: Encoder, name: str, revision: str, prefixes: tuple[str, str]) -> None:
        self._encoder = encoder
        self._query_prefix, self._document_prefix = prefixes
        unknown: dict[str, Any] = dict.fromkeys(UNKNOWN)
        self.mteb_model_meta = ModelMeta(
            loader=None,
            name=f"neobert-launch/{name}",
            revision=revision,
            n_parameters=None,
            max_tokens=encoder.tokenizer.max_length,
            embed_dim=encoder.model.hidden_size,
            open_weights=True,
            framework=["PyTorch"],
            similarity_fn_name=ScoringFunction.COSINE,
            use_instructions=bool(self._query_prefix or self._document_prefix),
            **unknown,
        )

    def encode(self, inputs: Any, *, prompt_type: Any = None, **_: Any) -> Embeddings:
        """Return the embeddings [N, D] of a data loader's texts, with the query or the document prefix."""
        kind = getattr(prompt_type, "value", prompt_type)
        prefix = self._query_prefix if kind == QUERY else self._document_prefix
        return self._encoder.encode([text for batch in inputs for text in batch["text"]], prompt=prefix)

    def similarity(self, first: Any, second: Any) -> Tensor:
        """Return the cosine similarity of each row of `first` with each row of `second`."""
        return _normalize(first) @ _normalize(second).T

    def similarity_pairwise(self, first: Any, second: Any) -> Tensor:
        """Return the cosine similarity of each row of `first` with the same row of `second`."""
        return (_normalize(first) * _normalize(second)).sum(-1)


def _normalize(vectors: Any) -> Tensor:
    return F.normalize(torch.atleast_2d(torch.as_tensor(vectors, dtype=torch.float32)), dim=-1)


def model_name(folder: Path) -> str:
    """Return mteb's name for a folder: the last three parts of its path without `checkpoints`, hyphenated."""
    parts = [part for part in folder.absolute().parts[-3:] if part not in ("/", "checkpoints")]
    return "-".join(parts)
