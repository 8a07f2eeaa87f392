"""Retrieval of masked key words from the start of a long document."""
