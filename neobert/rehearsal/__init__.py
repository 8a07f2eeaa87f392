"""A rehearsal: a few dozen steps of the run itself, measured, killed and resumed, in child processes.

It reports measurements as JSON and knows no threshold: the rules judge.
"""
