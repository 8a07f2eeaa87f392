"""Preflight checks: levels and their probes, rehearsal, evaluation of the rules, receipts."""
