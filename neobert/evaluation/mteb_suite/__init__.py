"""Evaluation on tasks of the mteb package, an optional dependency. Imports torch."""
