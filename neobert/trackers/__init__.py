"""Experiment trackers: one file each, listed in `table`, run by `background`.

Imports no torch and no tracker's package: the schema and the preflight probes read the table.
"""
