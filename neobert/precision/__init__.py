"""Precision of the computation, one recipe a file. Imports no torch."""
