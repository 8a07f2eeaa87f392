"""Layers and width of the models that the benchmarks of learning compare, by their number of parameters."""

SIZES = {"53M": (12, 512), "245M": (28, 768), "tiny": (2, 128)}
"""With tied embeddings of 30,528 tokens; tiny is for tests on a CPU."""
