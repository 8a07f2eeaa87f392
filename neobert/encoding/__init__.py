"""Embeddings of texts. `Encoder` imports torch, and is loaded when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neobert.encoding.encoder import Encoder

__all__ = ["Encoder"]


def __getattr__(name: str) -> Any:
    """Import the encoder. Unusable texts are refused before, without the seconds that torch takes."""
    if name != "Encoder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from neobert.encoding.encoder import Encoder

    return Encoder
