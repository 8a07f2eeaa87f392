"""A causal model of transformers as a family: packed documents are told apart by their position ids alone."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

from torch import nn
from transformers import AttentionInterface, Qwen2Config, Qwen2ForCausalLM

from neobert.export.weights import load_weights
from neobert.families.attention import AttentionSpec
from neobert.families.backbone import Backbone, Head
from neobert.kernels.plain_attention import plain_attention
from neobert.model.attention import enter_layer, note_kernel

FORMULA = "toy_formula"


def spec_of(section) -> AttentionSpec:
    """Return causal attention with half as many heads of keys as of queries."""
    heads = section.num_attention_heads
    size = section.hidden_size // heads
    return AttentionSpec(heads=heads, kv_heads=heads // 2, head_size=size, direction="causal")


def positions_received(positions):
    """Return the position ids that the model gets. A test plants a fault here."""
    return positions


def build(config, tokenizer, vocab_size, _world, _auto_class, _settings) -> Backbone:
    """Build a Qwen2 of the size in the section `model`."""
    section = config.model
    spec = spec_of(section)
    settings = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=section.hidden_size,
        num_hidden_layers=section.num_hidden_layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        intermediate_size=section.intermediate_size,
        pad_token_id=tokenizer.pad_id,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM._from_config(settings, attn_implementation="sdpa").train()
    for number, block in enumerate(model.model.layers):
        block.register_forward_pre_hook(partial(note, number))
    AttentionInterface.register(FORMULA, partial(by_formula, spec=spec))

    def hidden(inputs):
        ids, positions = inputs["input_ids"], positions_received(inputs["position_ids"])
        return model.model(ids[None], position_ids=positions[None], use_cache=False).last_hidden_state[0]

    def plain(document):
        with attending(model, FORMULA):
            return model.model(document[None], use_cache=False).last_hidden_state[0]

    return Backbone(
        model=model,
        blocks=list(model.model.layers),
        hidden=hidden,
        plain=plain,
        head=Head(model.lm_head),
        attention="sdpa",
        load=partial(load_weights, model),
    )


def note(number: int, _block: nn.Module, _arguments) -> None:
    """Record the block's attention."""
    enter_layer(number)
    note_kernel("sdpa")


def by_formula(_block, q, k, v, _mask, *, spec: AttentionSpec, **_):
    """Attend in one row [1, heads, S, H] by the formula."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return plain_attention(q, k, v, spec), None


@contextmanager
def attending(model, name: str):
    """Use another implementation of attention inside the `with` block."""
    before, model.config._attn_implementation = model.config._attn_implementation, name
    try:
        yield
    finally:
        model.config._attn_implementation = before
