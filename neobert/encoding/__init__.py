"""Embeddings of texts. Heavy: it imports torch."""

from neobert.encoding.encoder import Encoder

__all__ = ["Encoder"]
