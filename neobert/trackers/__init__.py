"""Experiment trackers: one module each, listed in `table`, run by `background`.

Importing them needs neither torch nor a tracker's package: the schema and preflight checks read the table.
"""
