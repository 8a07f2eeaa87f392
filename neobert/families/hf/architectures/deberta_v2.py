"""DeBERTa-v2 and v3: scores of content with content and with relative positions. Padded rows only.

D hidden, S relative positions.
"""

from __future__ import annotations

from dataclasses import replace

from neobert.families.hf.architecture import MASKED, TEXTS, TOKENS, HeadPath
from neobert.families.hf.architectures.bert import BERT
from neobert.families.hf.post_norm import post_norm_shape
from neobert.families.hf.settings import Settings
from neobert.families.linear import PROJECTION, Layout, Linear
from neobert.families.shape import ModelShape

LAYERS = (
    "attention.self.query_proj",
    "attention.self.key_proj",
    "attention.self.value_proj",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
SIZES = {"hidden_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 24, "intermediate_size": 6144}
TERMS = {"c2p": "attention.self.pos_key_proj", "p2c": "attention.self.pos_query_proj"}
"""Projections of the position table, by the attention term (a value of pos_att_type) that they compute."""


def shape(settings: Settings, vocab_size: int, positions: int) -> ModelShape:
    """Return the shape of a DeBERTa-v2 or v3. Raises `ProjectError` MOD006 for unsupported settings."""
    if settings.size("conv_kernel_size", 0, least=0):
        raise settings.invalid_value_error(
            "conv_kernel_size", "0: the convolution of the first block is not supported"
        )
    if not settings.flag("legacy", True):
        raise settings.invalid_value_error("legacy", "true: the newer head for masked words is not supported")
    has_positions = settings.flag("position_biased_input", True)
    found = post_norm_shape(
        settings,
        vocab_size,
        positions,
        architecture="deberta-v2",
        tables=(positions if has_positions else 0) + settings.size("type_vocab_size", 0, least=0),
        sizes=SIZES,
        names=LAYERS,
    )
    return _with_relative_positions(found, settings) if settings.flag("relative_attention", False) else found


def _with_relative_positions(shape: ModelShape, settings: Settings) -> ModelShape:
    hidden, layers, heads = shape.hidden_size, shape.num_layers, shape.attention.heads
    terms = [name for name in TERMS if name in _position_terms(settings)]
    shared = settings.flag("share_att_key", False)
    projections = () if shared else [TERMS[name] for name in terms]
    linear = Linear(hidden, hidden, Layout(PROJECTION, heads))
    distances = 2 * _num_distances(settings, shape.max_positions)
    norm = 2 * hidden * ("layer_norm" in settings.text("norm_rel_ebd", "none"))
    counted = shape.parameters
    return replace(
        shape,
        positions="relative",
        linear_layers={**shape.linear_layers, **dict.fromkeys(projections, linear)},
        parameters=replace(
            counted,
            # The projections are applied to the table of positions, once per microbatch.
            embeddings=counted.embeddings + distances * hidden + layers * len(projections) * hidden * hidden,
            vectors=counted.vectors + layers * len(projections) * hidden + norm,
        ),
        position_products=layers * len(terms) * distances * hidden,
        # Keys and queries of positions are repeated for each row, here of the longest length.
        kept={name: each._replace(values=each.values + 2 * hidden) for name, each in shape.kept.items()},
    )


def _position_terms(settings: Settings) -> list[str]:
    given = settings.values.get("pos_att_type") or []
    terms = given.split("|") if isinstance(given, str) else given
    if not isinstance(terms, list) or any(term not in TERMS for term in terms):
        raise settings.invalid_value_error("pos_att_type", f"a list of {' and '.join(TERMS)}")
    return terms


def _num_distances(settings: Settings, positions: int) -> int:
    """Return the number of relative positions per side: of buckets if set, else of distances."""
    buckets = settings.values.get("position_buckets", -1)
    if type(buckets) is int and buckets > 0:
        return buckets
    most = settings.values.get("max_relative_positions", -1)
    return most if type(most) is int and most > 0 else positions


DEBERTA_V2 = BERT._replace(
    shape=shape,
    prefix="deberta.",
    positions="",  # some checkpoints have none
    heads={
        MASKED: HeadPath("cls.predictions.decoder", ("cls.predictions.transform",)),
        TEXTS: HeadPath("classifier", ("pooler.dense", "=pooler_hidden_act", "dropout")),
        TOKENS: HeadPath("classifier", ("dropout",)),
    },
    packs=False,
    without_masked_head="transformers does not load the head of a published DeBERTa-v3",
)
