"""Layers and widths of the models in the benchmarks of learning, by number of parameters."""

SIZES = {"53M": (12, 512), "245M": (28, 768), "tiny": (2, 128)}
"""With tied embeddings of 30,528 tokens; tiny is for tests on a CPU."""
