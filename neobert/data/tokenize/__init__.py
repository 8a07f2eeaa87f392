"""Tokenizers, and documents as segments of token ids."""
