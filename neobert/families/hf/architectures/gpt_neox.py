"""GPT-NeoX and Pythia: attention and feed-forward side by side, rotary positions of a part of each head."""

from __future__ import annotations

from neobert.families.hf.blocks import Blocks, Sizes, StoredVectors, causal_attention, model_of_blocks
from neobert.families.hf.settings import Settings
from neobert.families.linear import QKV, Layout, Linear

ATTENTION = ("attention.query_key_value", "attention.dense")
FEED_FORWARD = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")

STORED = StoredVectors(width=2, hidden=7, queries=0, wide_hidden=1)


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of GPT-NeoX. A norm has a scale and a shift."""
    hidden, width = sizes.hidden, sizes.width
    linear = {
        ATTENTION[0]: Linear(hidden, 3 * hidden, Layout(QKV, sizes.heads)),
        ATTENTION[1]: Linear(hidden, hidden),
        FEED_FORWARD[0]: Linear(hidden, width),
        FEED_FORWARD[1]: Linear(width, hidden),
    }
    biased = ATTENTION * settings.flag("attention_bias", True) + FEED_FORWARD
    return Blocks(causal_attention(sizes), linear, biased, norms=4, last_norm=2, stored=STORED)


GPT_NEOX = model_of_blocks(
    "gpt_neox",
    Sizes(6144, 44, 64, 64, 0, 24_576),
    describe,
    prefix="gpt_neox.",
    embedding="embed_in",
    dropout=("hidden_dropout", 0.0),
    file_names={"embed_out.": "lm_head."},
)
