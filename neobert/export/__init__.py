"""Checkpoint folders that other programs read, and checkpoints that other programs wrote."""

from neobert.export.folder import write_hf_folder

__all__ = ["write_hf_folder"]
