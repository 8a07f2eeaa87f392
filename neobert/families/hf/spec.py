"""Shapes of transformers encoders, one function per architecture. Imports no torch.

Defaults are transformers' own. D hidden, F feed-forward width, V vocabulary, P positions, L blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import HfModelConfig, RunConfig
from neobert.families.attention import AttentionSpec, Window
from neobert.families.family import Family, Unsupported
from neobert.families.hf.settings import Settings, read_settings
from neobert.families.shape import Kept, ModelShape, ParameterCount
from neobert.tasks.specs import spec_of

KEPT_REASON = "a block keeps the inputs of its matrix products, norms and activation"
LAYER_TYPES = ("full_attention", "sliding_attention")


def bert_shape(settings: Settings, vocab_size: int, positions: int) -> ModelShape:
    """Return the shape of a BERT: post-norm blocks with biases, learned positions, token types.

    The head is a transform (dense layer and norm) and the decoder.
    """
    if settings.flag("is_decoder", False):
        raise settings.wrong("is_decoder", "false: the model must attend in both directions")
    hidden, layers = settings.size("hidden_size", 768), settings.size("num_hidden_layers", 12)
    heads, width = settings.size("num_attention_heads", 12), settings.size("intermediate_size", 3072)
    is_tied = settings.flag("tie_word_embeddings", True)
    attention = AttentionSpec(heads=heads, kv_heads=heads, head_size=hidden // heads)
    has_dropout = settings.number("hidden_dropout_prob", 0.1) > 0
    return ModelShape(
        architecture="bert",
        hidden_size=hidden,
        num_layers=layers,
        attention_width=hidden,
        feed_forward_width=width,
        vocab_size=vocab_size,
        attention=attention,
        positions="learned",
        max_positions=positions,
        parameters=ParameterCount(
            linear=layers * (attention.weights(hidden) + 2 * hidden * width),
            vectors=layers * (9 * hidden + width) + 2 * hidden,
            embeddings=(vocab_size + positions + settings.size("type_vocab_size", 2)) * hidden,
            # Untied, transformers keeps the bias twice: of the decoder and of the head around it.
            decoder=hidden * hidden + 3 * hidden + vocab_size + (0 if is_tied else vocab_size * (hidden + 1)),
        ),
        decoder_products=hidden * (hidden + vocab_size),
        initial_rms=settings.number("initializer_range", 0.02),
        kept=_kept(settings, heads, (4 + 2 * has_dropout) * hidden + 2 * width, 4 * hidden),
    )


def modernbert_shape(settings: Settings, vocab_size: int, positions: int) -> ModelShape:
    """Return the shape of a ModernBERT: pre-norm gated blocks, rotary positions, mostly sliding windows."""
    hidden, layers = settings.size("hidden_size", 768), settings.size("num_hidden_layers", 22)
    heads, width = settings.size("num_attention_heads", 12), settings.size("intermediate_size", 1152)
    is_tied = settings.flag("tie_word_embeddings", True)
    per_norm = 2 * hidden if settings.flag("norm_bias", False) else hidden
    attention_biases = 4 * hidden if settings.flag("attention_bias", False) else 0
    feed_forward_biases = 2 * width + hidden if settings.flag("mlp_bias", False) else 0
    head_bias = hidden if settings.flag("classifier_bias", False) else 0
    decoder_bias = vocab_size if settings.flag("decoder_bias", True) else 0
    is_eager = settings.is_eager
    window = _window(settings, layers)
    attention = AttentionSpec(heads=heads, kv_heads=heads, head_size=hidden // heads, window=window)
    own_decoder = 0 if is_tied else vocab_size * hidden
    return ModelShape(
        architecture="modernbert",
        hidden_size=hidden,
        num_layers=layers,
        attention_width=hidden,
        feed_forward_width=width,
        vocab_size=vocab_size,
        attention=attention,
        positions="rotary",
        max_positions=positions,
        parameters=ParameterCount(
            linear=layers * (attention.weights(hidden) + 3 * hidden * width),
            # Block 0 has no norm before attention; one follows the embedding and one the last block.
            vectors=layers * (2 * per_norm + attention_biases + feed_forward_biases) + per_norm,
            embeddings=vocab_size * hidden,
            decoder=hidden * hidden + head_bias + per_norm + decoder_bias + own_decoder,
        ),
        decoder_products=hidden * (hidden + vocab_size),
        initial_rms=settings.number("initializer_range", 0.02),
        kept=_kept(settings, heads, (6 if is_eager else 8) * hidden + 4 * width, 2 * hidden),
    )


def _kept(settings: Settings, heads: int, values: int, fp32_values: int) -> dict[str, Kept]:
    """Return the activations that one block stores for the backward pass, measured on transformers' modules.

    SDPA stores its mask, one number per token that is attended to. Eager attention stores the probabilities
    of every head, in fp32 from the softmax and in the compute type for the product.
    """
    fp32_values += 4 + heads  # statistics of norms and softmax
    if settings.is_eager:
        return {"eager": Kept(values, fp32_values, KEPT_REASON, scores=heads, fp32_scores=heads)}
    return {"eager": Kept(values, fp32_values, KEPT_REASON, scores=1)}


def _window(settings: Settings, layers: int) -> Window | None:
    """Return the sliding-window attention, or None if all blocks attend to the whole segment.

    `layer_types` lists the type of each block; without it, every n-th block attends to the whole segment.
    """
    types = settings.values.get("layer_types")
    if types is None:
        every = settings.size("global_attn_every_n_layers", 3)
        types = [LAYER_TYPES[index % every != 0] for index in range(layers)]
    elif not isinstance(types, list) or len(types) != layers or any(one not in LAYER_TYPES for one in types):
        raise settings.wrong("layer_types", f"a list of {layers} values, each {' or '.join(LAYER_TYPES)}")
    sliding = tuple(index for index, one in enumerate(types) if one == "sliding_attention")
    reach = settings.size("local_attention", 128) // 2
    return Window(sliding, reach) if sliding else None


class Architecture(NamedTuple):
    """Architecture of transformers.

    Attributes:
        shape: returns the shape for settings, embedding rows and positions.
        attention_dropout: setting of the dropout of attention, which only SDPA has, and its default.
        poolings: poolings of the classifier of texts; empty without one.
    """

    shape: Callable[[Settings, int, int], ModelShape]
    attention_dropout: tuple[str, float]
    poolings: tuple[str, ...] = ()


ARCHITECTURES = {
    "bert": Architecture(bert_shape, ("attention_probs_dropout_prob", 0.1), ("cls",)),
    "modernbert": Architecture(modernbert_shape, ("attention_dropout", 0.0), ("avg", "cls")),
}


def section_of(config: RunConfig) -> HfModelConfig:
    """Return the section `model` of a run with this model family; other families fail an assertion."""
    assert isinstance(config.model, HfModelConfig), "config of another model family"
    return config.model


def read_shape(section: HfModelConfig, vocab_size: int, longest_row: int) -> ModelShape:
    """Read the shape from the section `model` and config.json. Raises `ProjectError` MOD006."""
    settings = read_settings(section)
    positions = max_positions(settings, longest_row)
    return _architecture_of(settings).shape(settings, vocab_size, positions)


def _architecture_of(settings: Settings) -> Architecture:
    name = settings.text("model_type", "")
    if name not in ARCHITECTURES:
        raise settings.unsupported(name, tuple(ARCHITECTURES))
    return ARCHITECTURES[name]


def max_positions(settings: Settings, longest_row: int) -> int:
    """Return the number of positions: of the section, else of config.json, else `longest_row`."""
    return settings.size("max_position_embeddings", longest_row)


def requested_rows(section: HfModelConfig) -> int | None:
    """Return the embedding rows of the run's initial checkpoint; None: they follow the tokenizer."""
    if section.vocab_size is not None or section.pretrained_checkpoint is None:
        return section.vocab_size
    return read_settings(section).size("vocab_size", 1)


def requested_kernels(section: HfModelConfig) -> tuple[str, str]:
    """Return the kernels of blocks and of packed attention: sdpa if attention has dropout, else auto."""
    settings = read_settings(section)
    name, default = _architecture_of(settings).attention_dropout
    return "torch", "sdpa" if settings.number(name, default) > 0 else "auto"


def other_pooling(config: RunConfig) -> str | None:
    """Return the pooling of the architecture's classifier of texts; None if it has the one of the config."""
    pooling = spec_of(config).model_settings(config).get("pooling")
    if pooling is None or not isinstance(config.model, HfModelConfig):
        return None
    poolings = _architecture_of(read_settings(config.model)).poolings
    return poolings[0] if poolings and pooling not in poolings else None


def unsupported(config: RunConfig) -> Iterator[Unsupported]:
    """Yield the config keys that this project does not support for transformers models."""
    section, settings = section_of(config), read_settings(section_of(config))
    if config.datacollator.pack_sequences and section.attention != "sdpa":
        problem = f"attention {section.attention} is for padded rows"
        yield Unsupported("model.attention", problem, "set model.attention to sdpa")
    poolings = _architecture_of(settings).poolings
    task = spec_of(config)
    pooling = task.model_settings(config).get("pooling") if task.has_head else None
    if pooling is not None and not poolings:
        yield Unsupported("task", "this architecture has no classifier of texts", "set task to pretrain")
    elif pooling is not None and pooling not in poolings:
        key, known = "classification.pooling", " or ".join(poolings)
        problem = f"transformers' classifier of this architecture pools by {known}, not {pooling}"
        yield Unsupported(key, problem, f"set {key} to {known}")
    if config.adapter.type is not None:
        problem = "adapters are for NeoBERT"
        yield Unsupported("adapter.type", problem, "remove the section adapter")
    if OPTIMIZERS[config.optimizer.name].clips_logits:
        problem = f"{config.optimizer.name} measures the attention logits of a NeoBERT"
        yield Unsupported("optimizer.name", problem, "set optimizer.name to muon")
    is_padded = not config.datacollator.pack_sequences
    if config.trainer.torch_compile and is_padded and settings.text("model_type", "") == "modernbert":
        # Two kinds of blocks, each with and without gradients, for fixed and for varying lengths.
        problem = "torch.compile makes too many graphs for padded rows of a ModernBERT"
        hint = "set datacollator.pack_sequences to true, or trainer.torch_compile to false"
        yield Unsupported("trainer.torch_compile", problem, hint)


HF = Family(
    name="hf",
    module="neobert.families.hf.build",
    read_shape=read_shape,
    requested_rows=requested_rows,
    requested_kernels=requested_kernels,
    padded_attention=lambda section: section.attention,
    attention_hint="set the dropout of attention to 0 in the config.json that model.config names",
    modules="the transformers modules",
    with_kernels=lambda section, _blocks: section,
    unsupported=unsupported,
)
