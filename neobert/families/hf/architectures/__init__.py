"""Architectures of transformers: one file each, and their table."""
