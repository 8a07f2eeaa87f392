"""The training loop, its hooks, its guards, and the checkpoints."""
