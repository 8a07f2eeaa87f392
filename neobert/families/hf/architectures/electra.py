"""ELECTRA: blocks of a BERT, with embeddings that may be narrower than the blocks."""

from __future__ import annotations

from neobert.families.hf.architecture import MASKED, TEXTS, TOKENS, Architecture, HeadPath
from neobert.families.hf.post_norm import OF_BERT, Sizes, post_norm_shape
from neobert.families.hf.settings import Settings
from neobert.families.shape import ModelShape


def shape(settings: Settings, vocab_size: int, positions: int) -> ModelShape:
    """Return the shape of an ELECTRA, with the head of masked words, which its generator has."""
    sizes = Sizes(
        settings.size("hidden_size", 256),
        settings.size("num_hidden_layers", 12),
        settings.size("num_attention_heads", 4),
        settings.size("intermediate_size", 1024),
    )
    return post_norm_shape(
        settings,
        sizes,
        OF_BERT,
        architecture="electra",
        vocab_size=vocab_size,
        max_positions=positions,
        tables=positions + settings.size("type_vocab_size", 2),
        embedding_size=settings.size("embedding_size", 128),
        has_own_bias=False,
    )


ELECTRA = Architecture(
    shape=shape,
    prefix="electra.",
    blocks="encoder.layer",
    embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    heads={
        MASKED: HeadPath("generator_lm_head", ("generator_predictions",)),
        TEXTS: HeadPath("classifier.out_proj", ("dropout", "classifier.dense", "=gelu", "dropout")),
        TOKENS: HeadPath("classifier", ("dropout",)),
    },
    attention_dropout=("attention_probs_dropout_prob", 0.1),
    dropout=("hidden_dropout_prob", 0.1),
    # A discriminator gets no new head: it would be a worse generator than the published one, and its own
    # objective, the detection of replaced tokens, is not what task pretrain continues.
    without_masked_head="an ELECTRA discriminator has none, its generator has one",
)
