"""Recipes of torchao: linear layers of the blocks with matrix products in fp8."""
