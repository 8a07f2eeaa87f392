"""Preflight: levels and probes, the rehearsal, the examination of a run, its receipt."""
