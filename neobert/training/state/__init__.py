"""The state of a run, and how far it has come."""
