"""Triton programs of `neobert.kernels`.

These modules need triton to be imported; the operators in `neobert.kernels` import them on first use.
"""
