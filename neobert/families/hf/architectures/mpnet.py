"""MPNet: BERT blocks, whose attention scores have a bias by distance. Padded rows only."""

from __future__ import annotations

from dataclasses import replace

from neobert.families.hf.architecture import Padding
from neobert.families.hf.architectures.bert import BERT
from neobert.families.hf.architectures.roberta import HEADS
from neobert.families.hf.post_norm import post_norm_shape
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
    """Return the shape of an MPNet; all blocks share one table of biases. Raises `ProjectError` MOD006."""
    found = post_norm_shape(
        settings,
        vocab_size,
        positions,
        architecture="mpnet",
        tables=1 + PADDING.token_id + positions,
        names=LAYERS,
    )
    biases = settings.size("relative_attention_num_buckets", 32) * found.attention.heads
    parameters = replace(found.parameters, embeddings=found.parameters.embeddings + biases)
    return replace(found, parameters=parameters)


MPNET = BERT._replace(
    shape=shape, prefix="mpnet.", heads=HEADS, padding=PADDING, packs=False, recomputes=False
)
