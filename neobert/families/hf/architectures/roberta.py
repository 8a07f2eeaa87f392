"""RoBERTa, XLM-R and CamemBERT: BERT blocks, with positions that begin after the padding token's id."""

from __future__ import annotations

from functools import partial

from neobert.families.hf.architecture import MASKED, TEXTS, TOKENS, HeadPath, Padding
from neobert.families.hf.architectures.bert import BERT
from neobert.families.hf.post_norm import post_norm_shape
from neobert.families.hf.settings import Settings
from neobert.families.shape import ModelShape


def shape(settings: Settings, vocab_size: int, positions: int, *, architecture: str) -> ModelShape:
    """Return the shape of a RoBERTa, whose position embedding has rows that no token uses.

    Raises `ProjectError` MOD006 for an invalid setting.
    """
    unused = 1 + settings.size("pad_token_id", PADDING.token_id, least=0)
    return post_norm_shape(
        settings,
        vocab_size,
        positions,
        architecture=architecture,
        tables=unused + positions + settings.size("type_vocab_size", 2),
    )


PADDING = Padding(1)
HEADS = {
    MASKED: HeadPath("lm_head.decoder", ("lm_head.dense", "=gelu", "lm_head.layer_norm")),
    TEXTS: HeadPath("classifier.out_proj", ("dropout", "classifier.dense", "=tanh", "dropout")),
    TOKENS: HeadPath("classifier", ("dropout",)),
}
ROBERTA, XLM_ROBERTA, CAMEMBERT = (
    BERT._replace(shape=partial(shape, architecture=name), prefix="roberta.", heads=HEADS, padding=PADDING)
    for name in ("roberta", "xlm-roberta", "camembert")
)
