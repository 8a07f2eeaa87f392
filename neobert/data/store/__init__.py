"""Prepared text on disk: built once, verified, memory-mapped."""
