"""Pretraining of causal models: every token of a document is predicted from those before it."""
