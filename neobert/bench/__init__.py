"""Throughput benchmark: one or two configs, in alternating turns of a few steps, on the same documents.

`python -m neobert.bench REQUEST.json` imports no torch. Each config trains in a child process of its own,
`python -m neobert.bench.arm`, which works only in its turn: process-wide settings and compiled code of one
cannot affect the other.
"""
