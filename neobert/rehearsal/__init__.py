"""Rehearsal: a few dozen steps of the run, measured, killed and resumed, in child processes.

It reports measurements as JSON, which the rules judge.
"""
