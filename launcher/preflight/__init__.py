"""Preflight: which probes run, the rehearsal, the examination of a run, its receipt."""
