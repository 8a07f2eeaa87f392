"""Checkpoints on disk: their folders, manifests and verification. Imports no torch."""
