"""Architectures of transformers encoders: one file each, and their table."""
