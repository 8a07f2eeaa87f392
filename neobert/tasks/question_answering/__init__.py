"""Extractive question answering: the answer to a question is a span of its context (SQuAD)."""
