"""Adapters: a few trained weights on top of a frozen encoder."""
