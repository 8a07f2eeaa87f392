"""Transformers encoders, from a config.json or by architecture. No code of a checkpoint is ever run."""
