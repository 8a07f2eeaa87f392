"""Checkpoints: one folder a step, complete and verified or not there at all."""
