"""Pseudo-log-likelihoods: minimal pairs (BLiMP) and pseudo-perplexity."""
