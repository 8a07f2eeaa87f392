"""Retrieval on a folder in the layout of BEIR."""
