"""Section `pretraining` of a profile: values for a NeoBERT that is pretrained from random weights.

Tasks with labels, trained weights and transformers models have the other values of the profile: rates,
schedule and masking that suit random weights harm trained ones, and other tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce

from neobert.config.document import Document
from neobert.config.layers import lay_over
from neobert.config.nodes import find
from neobert.config.overrides import Override, as_layer
from neobert.config.resolution import EMPTY
from neobert.config.schema import RunConfig
from profiles.inherit import entries, identity_error, without

PRETRAINING = "pretraining"
OWN = {
    ("task",): RunConfig().task,
    ("model", "type"): RunConfig().model.type,
    ("model", "pretrained_checkpoint"): None,
}


def has_recipe(documents: Sequence[Document]) -> bool:
    """Return whether a profile in the documents has a section `pretraining`."""
    return any(document.kind == "profile" and PRETRAINING in entries(document) for document in documents)


def with_recipe(documents: Sequence[Document], overrides: Sequence[Override] = ()) -> tuple[Document, ...]:
    """Return the documents, each section `pretraining` as a document after its profile if it applies.

    Raises ProjectError if a section is not a mapping.
    """
    if not has_recipe(documents):
        return tuple(documents)
    plain = without_recipe(documents)
    layers = [*plain, *map(as_layer, overrides)]
    root = reduce(lay_over, (layer.root for layer in layers), EMPTY)
    found = {path: node.value for path in OWN if (node := find(root, path)) is not None}
    return tuple(_expanded(documents)) if OWN | found == OWN else plain


def without_recipe(documents: Sequence[Document]) -> tuple[Document, ...]:
    """Return the documents, profiles without their section `pretraining`."""
    return tuple(map(_without_recipe, documents))


def _without_recipe(document: Document) -> Document:
    return without(document, (PRETRAINING,)) if document.kind == "profile" else document


def _expanded(documents: Sequence[Document]) -> Iterator[Document]:
    """Yield each document, and its recipe unless a later profile sets `pretraining: null`."""
    nodes = [entries(each).get(PRETRAINING) if each.kind == "profile" else None for each in documents]
    nulls = [index for index, node in enumerate(nodes) if node is not None and node.value is None]
    for index, (document, node) in enumerate(zip(documents, nodes, strict=True)):
        yield _without_recipe(document)
        if node is None or index <= max(nulls, default=-1):
            continue
        if not isinstance(node.value, dict):
            place = f"{document.file}:{node.origin.line}:{node.origin.column}"
            raise identity_error("pretraining is not a mapping", "write sections below pretraining:", place)
        yield replace(document, root=node, flaws=())
