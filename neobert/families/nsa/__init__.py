"""Causal models with native sparse attention, by the names of flash-linear-attention."""
