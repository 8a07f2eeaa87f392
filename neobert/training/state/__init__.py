"""State of a run, and its progress, which a checkpoint holds."""
