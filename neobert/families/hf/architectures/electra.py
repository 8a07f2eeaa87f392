"""ELECTRA: BERT blocks, with embeddings that may be narrower than the blocks."""

from __future__ import annotations

from neobert.families.hf.architecture import MASKED, TEXTS, TOKENS, HeadPath
from neobert.families.hf.architectures.bert import BERT
from neobert.families.hf.post_norm import post_norm_shape
from neobert.families.hf.settings import Settings
from neobert.families.shape import ModelShape

SIZES = {"hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 1024}


def shape(settings: Settings, vocab_size: int, positions: int) -> ModelShape:
    """Return the shape of an ELECTRA with its generator's masked-word head. Raises `ProjectError` MOD006."""
    return post_norm_shape(
        settings,
        vocab_size,
        positions,
        architecture="electra",
        tables=positions + settings.size("type_vocab_size", 2),
        sizes=SIZES,
        embedding_size=settings.size("embedding_size", 128),
        has_own_bias=False,
    )


ELECTRA = BERT._replace(
    shape=shape,
    prefix="electra.",
    heads={
        MASKED: HeadPath("generator_lm_head", ("generator_predictions",)),
        TEXTS: HeadPath("classifier.out_proj", ("dropout", "classifier.dense", "=gelu", "dropout")),
        TOKENS: HeadPath("classifier", ("dropout",)),
    },
    # A discriminator gets no new head: it would be a worse generator than the published one, and its own
    # objective, the detection of replaced tokens, is not what task pretrain continues.
    without_masked_head="an ELECTRA discriminator has no such head, but its generator has",
)
