"""Interface of a model family for plan, rules and trainer. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from neobert.config.schema import RunConfig
from neobert.families.shape import ModelShape


class Unsupported(NamedTuple):
    """A key of the run that the model family does not support."""

    key: str
    problem: str
    hint: str


def supports_all(_config: RunConfig) -> Iterator[Unsupported]:
    """Return no keys: the family supports every key, or rules check its limits."""
    yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model family. Callables take the family's own section `model`.

    Attributes:
        name: value of the key `model.type`.
        module: dotted name of the module that builds the model, see `neobert.families.build`.
        read_shape: shape from the section, the rows of the embedding and the tokens of the longest row.
            Raises `ProjectError` MOD006 if the section or a file that it names does not describe a model.
        requested_rows: rows of the embedding that the section sets; None: they follow the tokenizer.
        requested_kernels: kernels of blocks and of packed attention that the section names, or auto.
        with_kernels: the section with other kernels named for the blocks.
        modules: what runs the blocks where the section names no kernels; empty: it names them.
        padded_attention: attention kernel of padded rows.
        packs: documents can be packed and stay isolated from each other.
        has_numerics_probes: the probes of `validate-gpu` know this model.
        unsupported: keys of a run that the family does not support.
    """

    name: str
    module: str
    read_shape: Callable[[Any, int, int], ModelShape]
    requested_rows: Callable[[Any], int | None]
    requested_kernels: Callable[[Any], tuple[str, str]]
    with_kernels: Callable[[Any, str], Any]
    modules: str = ""
    padded_attention: Callable[[Any], str] = lambda _section: "sdpa"
    packs: bool = True
    has_numerics_probes: bool = False
    unsupported: Callable[[RunConfig], Iterator[Unsupported]] = supports_all
