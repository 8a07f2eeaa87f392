"""Quartet-II: linear layers of the blocks with matrix products in nvfp4."""
