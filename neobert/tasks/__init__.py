"""Tasks: what is trained. Each contributes data, an objective and an evaluation to the one loop."""
