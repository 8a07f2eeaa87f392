"""Correlation of cosine similarities with scores of pairs, such as STS-B."""
