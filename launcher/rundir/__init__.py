"""Run directory: its lock, its records, progress and hangs."""
