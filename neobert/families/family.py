"""Interface of a model family for plan, rules and trainer. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from neobert.config.schema import RunConfig
from neobert.families.shape import ModelShape


class UnsupportedKey(NamedTuple):
    """A key of the run that the model family does not support."""

    key: str
    problem: str
    hint: str


def no_unsupported_keys(_config: RunConfig) -> Iterator[UnsupportedKey]:
    """Yield nothing: the family supports every key, or rules check its limits."""
    yield from ()


class Family(NamedTuple):
    """A model family.

    Callables take the family's own section `model`, and raise `ProjectError` if it is invalid.

    Attributes:
        name: value of the key `model.type`.
        module: dotted name of the module that builds the model, see `neobert.families.backbone`.
        read_shape: returns the shape, given the section, the number of embedding rows and the length of the
            longest row in tokens. Raises `ProjectError` MOD006 for an invalid section or config.json.
        requested_rows: returns the number of embedding rows of the section; None: the tokenizer decides.
        requested_kernels: returns the section's kernels of blocks and of packed attention, or auto.
        with_kernels: returns a copy of the section with the given kernels for the blocks.
        kernel_key: key that selects the kernel of attention, or else the model that has it.
        kernel_hint: hint if its kernel fails a test and no key selects another one; else empty.
        attention_key: key that may name the kernel of packed attention.
        attention_reason: why `requested_kernels` names a kernel of packed attention and not auto.
        attention_hint: edit after which packed attention does not run document by document.
        dropout: returns the largest probability of dropout in the blocks.
        dropout_key: returns the key that sets this dropout.
        modules: description of the block implementation, if the section has no key for kernels; else empty.
        padded_attention: returns the attention kernel of padded rows.
        has_numerics_probes: `validate-gpu` has numerics probes for this model.
        unsupported: yields the keys of a run that the family does not support.
        trained_positions: returns the longest sequence that the config.json of a folder states; 0: none.
        is_causal: a token attends to no later one; for `hf`, the architecture decides.
        model_class: class that loads a checkpoint; empty: a transformers class loads it.
        rope_theta_for: returns the `model.rope_theta` with which the weights in a folder train on the rows of
            a run; 0: the family has no such key.
    """

    name: str
    module: str
    read_shape: Callable[[Any, int, int], ModelShape]
    requested_rows: Callable[[Any], int | None]
    requested_kernels: Callable[[Any], tuple[str, str]]
    with_kernels: Callable[[Any, str], Any]
    kernel_key: str = "model.attn_backend"
    kernel_hint: str = ""
    attention_key: str = "model.attn_backend"
    attention_reason: str = "model.attn_backend as given"
    attention_hint: str = "set model.attn_backend to auto"
    dropout: Callable[[Any], float] = lambda _section: 0.0
    dropout_key: Callable[[Any], str] = lambda _section: "model.dropout"
    modules: str = ""
    padded_attention: Callable[[Any], str] = lambda _section: "sdpa"
    has_numerics_probes: bool = False
    unsupported: Callable[[RunConfig], Iterator[UnsupportedKey]] = no_unsupported_keys
    trained_positions: Callable[[Path], int] = lambda _folder: 0
    is_causal: bool = False
    model_class: str = ""
    rope_theta_for: Callable[[RunConfig, Path], float] = lambda _config, _folder: 0.0
