"""Training state: progress (saved in checkpoints), session state, and the trainer."""
