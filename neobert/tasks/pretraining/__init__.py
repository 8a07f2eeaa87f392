"""Masked-language-model pretraining."""
