"""Embeddings of texts. Imports torch."""

from neobert.encoding.encoder import Encoder

__all__ = ["Encoder"]
