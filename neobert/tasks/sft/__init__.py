"""Supervised fine-tuning on conversations: the model learns the turns of the assistant."""
