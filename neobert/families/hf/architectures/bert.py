"""BERT: post-norm blocks with biases, learned positions, token types."""

from __future__ import annotations

from neobert.families.hf.architecture import MASKED, TEXTS, TOKENS, Architecture, HeadPath
from neobert.families.hf.post_norm import post_norm_shape
from neobert.families.hf.settings import Settings
from neobert.families.shape import ModelShape


def shape(settings: Settings, vocab_size: int, positions: int) -> ModelShape:
    """Return the shape of a BERT, with learned positions and token types. Raises `ProjectError` MOD006."""
    return post_norm_shape(
        settings,
        vocab_size,
        positions,
        architecture="bert",
        tables=positions + settings.size("type_vocab_size", 2),
    )


BERT = Architecture(
    shape=shape,
    prefix="bert.",
    blocks="encoder.layer",
    embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    heads={
        MASKED: HeadPath("cls.predictions.decoder", ("cls.predictions.transform",)),
        TEXTS: HeadPath("classifier", ("bert.pooler.dense", "bert.pooler.activation", "dropout")),
        TOKENS: HeadPath("classifier", ("dropout",)),
    },
    attention_dropout=("attention_probs_dropout_prob", 0.1),
    dropout=("hidden_dropout_prob", 0.1),
)
