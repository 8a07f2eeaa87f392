"""Adapters: a few trained weights next to the frozen ones of an encoder."""
