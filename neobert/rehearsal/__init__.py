"""A rehearsal: a few dozen steps of the run itself, measured, killed and resumed. Lives in child processes.

It says what it saw, in JSON, and knows no threshold: the rules judge.
"""
