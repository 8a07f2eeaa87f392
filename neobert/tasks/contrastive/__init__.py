"""Contrastive training of embeddings: pairs of texts, with negatives of the whole optimizer step."""
