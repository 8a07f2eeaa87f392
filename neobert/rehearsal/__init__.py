"""Rehearsal: a few dozen steps of the run in child processes, which are measured, killed and resumed.

The measurements are reported as JSON and checked by the rules.
"""
