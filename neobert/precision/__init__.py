"""Precision of the computation, one recipe per file. Imports no torch."""
