"""Triton programs.

Importing a module of this folder needs triton; the operators above it import them on first use.
"""
