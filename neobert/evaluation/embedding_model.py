"""Model folder and settings for embedding texts. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingModel:
    """A model folder and its settings; None selects the folder's setting, or the default of the device.

    Attributes:
        folder: exported folder, checkpoint, or run directory.
        pooling: "avg", "cls" or "max".
        max_length: tokens to which texts are truncated, special tokens included.
        dtype: "bf16" or "fp32".
        query_prefix, document_prefix: text prepended to each query and to each document; None: the
            prompts that the folder declares.
    """

    folder: str
    pooling: str | None = None
    max_length: int | None = None
    dtype: str | None = None
    device: str | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None
