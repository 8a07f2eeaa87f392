"""Throughput benchmark of one or two configs, in alternating turns of a few steps, on the same documents.

`python -m neobert.bench REQUEST.json` imports no torch. Each config trains in its own child process,
`python -m neobert.bench.arm`, so that process-wide settings and compiled code of one do not affect the other.
"""
