"""Embeddings of texts. `Encoder` imports torch, and is itself imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neobert.encoding.encoder import Encoder

__all__ = ["Encoder"]


def __getattr__(name: str) -> Any:
    """Import `Encoder` on first use: invalid texts are rejected without waiting for the import of torch."""
    if name != "Encoder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from neobert.encoding.encoder import Encoder

    return Encoder
