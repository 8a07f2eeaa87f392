"""A throughput harness: one or two configs, step by step in turns, on the same documents.

`python -m neobert.bench REQUEST.json` conducts and imports no torch. Each config trains in a child of its
own, `python -m neobert.bench.arm`, which stays alive and works only when it is its turn: what one of them
sets for its whole process, or compiles, cannot reach the other.
"""
