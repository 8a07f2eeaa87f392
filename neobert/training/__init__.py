"""The training loop, its hooks, and the checkpoints.

`journal`, `compatibility`, `checkpoint.manifest` and `checkpoint.folders` import no torch, so that a
probe may read what a run left behind.
"""
