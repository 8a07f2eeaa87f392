"""Retrieval on a folder in the layout of BEIR. Heavy: it imports torch."""
