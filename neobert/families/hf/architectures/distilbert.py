"""DistilBERT: BERT blocks under other names, without token types."""

from __future__ import annotations

from neobert.families.hf.architecture import MASKED, TEXTS, TOKENS, Architecture, HeadPath
from neobert.families.hf.post_norm import post_norm_shape
from neobert.families.hf.settings import Settings
from neobert.families.shape import ModelShape

LAYERS = (
    "attention.q_lin",
    "attention.k_lin",
    "attention.v_lin",
    "attention.out_lin",
    "ffn.lin1",
    "ffn.lin2",
)
SIZES = {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072}


def shape(settings: Settings, vocab_size: int, positions: int) -> ModelShape:
    """Return the shape of a DistilBERT, which has no token types. Raises `ProjectError` MOD006."""
    return post_norm_shape(
        settings,
        vocab_size,
        positions,
        architecture="distilbert",
        tables=positions,
        sizes=SIZES,
        names=LAYERS,
        has_own_bias=False,
        num_dropouts=1,
        dropout="dropout",
    )


DISTILBERT = Architecture(
    shape=shape,
    prefix="distilbert.",
    blocks="transformer.layer",
    embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    heads={
        MASKED: HeadPath("vocab_projector", ("vocab_transform", "activation", "vocab_layer_norm")),
        TEXTS: HeadPath("classifier", ("pre_classifier", "=relu", "dropout")),
        TOKENS: HeadPath("classifier", ("dropout",)),
    },
    attention_dropout=("attention_dropout", 0.1),
    dropout=("dropout", 0.1),
    names={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
    },
)
