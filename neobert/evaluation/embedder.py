"""Loading of the encoder for an evaluation, and its description for reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neobert.encoding import Encoder
from neobert.encoding.placement import model_identity
from neobert.evaluation.embedding_model import EmbeddingModel
from neobert.runfiles.checkpoint.model_files import weights_digest
from neobert.runfiles.evaluation_report import WEIGHTS


def load_embedder(model: EmbeddingModel) -> Encoder:
    """Load the encoder, with embeddings scaled to unit length. Raises `ProjectError`."""
    return Encoder.load(
        model.folder,
        pooling=model.pooling,
        normalize=True,
        max_length=model.max_length,
        device=model.device,
        dtype=model.dtype,
    )


def describe(encoder: Encoder, model: EmbeddingModel) -> dict[str, Any]:
    """Return the digest of the weights and the settings that affect a score, for reports."""
    return {
        WEIGHTS: weights_digest(Path(encoder.folder)),
        "pooling": encoder.pooling,
        "max_length": encoder.tokenizer.max_length,
        "query_prefix": model.query_prefix,
        "document_prefix": model.document_prefix,
        "kernels": encoder.model.kernels,
    }


def identity_of(encoder: Encoder, model: EmbeddingModel) -> dict[str, Any]:
    """Return model and settings that determine embeddings, except prefixes, as JSON values."""
    return {
        **model_identity(Path(encoder.folder), model.device, model.dtype),
        "pooling": encoder.pooling,
        "max_length": encoder.tokenizer.max_length,
    }


def prompts_note(model: EmbeddingModel) -> list[str]:
    """Return notes about the prefixes of queries and documents; empty without prefixes."""
    prefixes = {"queries": model.query_prefix, "documents": model.document_prefix}
    return [f"prefix of {kind}: {prefix!r}" for kind, prefix in prefixes.items() if prefix]
