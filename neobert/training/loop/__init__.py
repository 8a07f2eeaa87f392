"""The training loop: a session, its steps, hooks, evaluation and stop signals."""
