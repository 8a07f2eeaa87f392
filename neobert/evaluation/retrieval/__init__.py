"""Evaluation of retrieval on a dataset in the BEIR format."""
