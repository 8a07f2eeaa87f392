"""Checkpoints: one folder per step, complete and verified or absent."""
