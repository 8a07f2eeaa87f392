"""A run directory seen from outside: its lock, its records, its progress, stalls."""
