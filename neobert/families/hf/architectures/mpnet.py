"""MPNet: blocks of a BERT, whose attention scores have a bias by distance. Padded rows only."""

from __future__ import annotations

from dataclasses import replace

from neobert.families.hf.architecture import Architecture, Padding
from neobert.families.hf.architectures.roberta import HEADS
from neobert.families.hf.post_norm import bert_sizes, post_norm_shape
from neobert.families.hf.settings import Settings
from neobert.families.shape import ModelShape

LAYERS = (
    "attention.attn.q",
    "attention.attn.k",
    "attention.attn.v",
    "attention.attn.o",
    "intermediate.dense",
    "output.dense",
)
PADDING = Padding(1, is_fixed=True)


def shape(settings: Settings, vocab_size: int, positions: int) -> ModelShape:
    """Return the shape of an MPNet; all blocks share one table of biases."""
    sizes = bert_sizes(settings)
    found = post_norm_shape(
        settings,
        sizes,
        LAYERS,
        architecture="mpnet",
        vocab_size=vocab_size,
        max_positions=positions,
        tables=1 + PADDING.token_id + positions,
    )
    biases = settings.size("relative_attention_num_buckets", 32) * sizes.heads
    parameters = replace(found.parameters, embeddings=found.parameters.embeddings + biases)
    return replace(found, parameters=parameters)


MPNET = Architecture(
    shape=shape,
    prefix="mpnet.",
    blocks="encoder.layer",
    embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    heads=HEADS,
    attention_dropout=("attention_probs_dropout_prob", 0.1),
    dropout=("hidden_dropout_prob", 0.1),
    padding=PADDING,
    packs=False,
    recomputes=False,
)
