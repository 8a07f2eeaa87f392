"""Loading of the encoder for an evaluation, and its description for reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neobert.encoding import Encoder
from neobert.encoding.placement import model_identity
from neobert.evaluation.embedding_model import EmbeddingModel
from neobert.runfiles.checkpoint.model_files import weights_digest
from neobert.runfiles.evaluation_report import WEIGHTS

QUERY_PREFIX, DOCUMENT_PREFIX = "query_prefix", "document_prefix"


def load_embedder(model: EmbeddingModel) -> Encoder:
    """Load the encoder, with embeddings of unit length. Raises `ProjectError` if it is unusable."""
    return Encoder.load(
        model.folder,
        pooling=model.pooling,
        normalize=True,
        max_length=model.max_length,
        device=model.device,
        dtype=model.dtype,
    )


def resolve_prompts(encoder: Encoder, model: EmbeddingModel) -> dict[str, str]:
    """Return the query and document prefixes by report key; None in `model` selects the folder's prompt."""
    query, document = model.query_prefix, model.document_prefix
    return {
        QUERY_PREFIX: encoder.prompts.query_prompt if query is None else query,
        DOCUMENT_PREFIX: encoder.prompts.document_prompt if document is None else document,
    }


def describe_embedder(encoder: Encoder, model: EmbeddingModel) -> dict[str, Any]:
    """Return the digest of the weights and the settings that affect a score, for reports."""
    return {
        WEIGHTS: weights_digest(Path(encoder.folder)),
        "pooling": encoder.pooling,
        "max_length": encoder.tokenizer.max_length,
        **resolve_prompts(encoder, model),
        "kernels": encoder.model.kernels,
    }


def embedder_identity(encoder: Encoder, model: EmbeddingModel) -> dict[str, Any]:
    """Return the values that determine the embeddings of a text, as JSON values."""
    return {
        **model_identity(Path(encoder.folder), model.device, model.dtype),
        "pooling": encoder.pooling,
        "max_length": encoder.tokenizer.max_length,
    }


def prefix_notes(prompts: Mapping[str, str]) -> list[str]:
    """Return a note for each prefix that is not empty."""
    kinds = {QUERY_PREFIX: "queries", DOCUMENT_PREFIX: "documents"}
    return [f"prefix of {kinds[name]}: {prefix!r}" for name, prefix in prompts.items() if prefix]
