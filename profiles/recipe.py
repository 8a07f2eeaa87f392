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
from neobert.config.nodes import Node, find
from neobert.config.overrides import Override, override_layer
from neobert.config.resolution import EMPTY
from neobert.config.schema import RunConfig
from profiles.inherit import identity_error, top_level_entries, without_keys

PRETRAINING = "pretraining"
CONDITIONS: dict[tuple[str, ...], object] = {
    ("task",): RunConfig().task,
    ("model", "type"): RunConfig().model.type,
    ("model", "pretrained_checkpoint"): None,
}


def with_recipe(documents: Sequence[Document], overrides: Sequence[Override] = ()) -> tuple[Document, ...]:
    """Replace each section `pretraining` with a document of its keys, after its profile.

    If the run does not meet `CONDITIONS`, or an override is `pretraining=null`, sections are only removed.
    Raises ProjectError if a section is not a mapping.
    """
    if not any(map(_recipe_node, documents)):
        return tuple(documents)
    plain = without_recipe(documents)
    layers = [*plain, *map(override_layer, overrides)]
    root = reduce(lay_over, (layer.root for layer in layers), EMPTY)
    found = {path: node.value for path in CONDITIONS if (node := find(root, path)) is not None}
    is_off = without_null(overrides) != tuple(overrides)
    return plain if is_off or CONDITIONS | found != CONDITIONS else tuple(_expand_recipes(documents))


def without_recipe(documents: Sequence[Document]) -> tuple[Document, ...]:
    """Return the documents without their sections `pretraining`."""
    return tuple(without_keys(each, (PRETRAINING,)) if _recipe_node(each) else each for each in documents)


def without_null(overrides: Sequence[Override]) -> tuple[Override, ...]:
    """Return the overrides without `pretraining=null`."""
    return tuple(each for each in overrides if _recipe_node(override_layer(each)) is None)


def _recipe_node(document: Document) -> Node | None:
    """Return the section `pretraining` of a profile, or a null for it in a run file or argument, or None."""
    node = top_level_entries(document).get(PRETRAINING)
    is_allowed = node is not None and (document.kind == "profile" or node.value is None)
    return node if is_allowed else None


def _expand_recipes(documents: Sequence[Document]) -> Iterator[Document]:
    """Yield each document without its section `pretraining`, followed by the section as a document.

    Sections in or before the last document with `pretraining: null` are left out.
    Raises ProjectError if one of the other sections is not a mapping.
    """
    sections = list(map(_recipe_node, documents))
    nulls = [index for index, node in enumerate(sections) if node is not None and node.value is None]
    without_sections = without_recipe(documents)
    for index, (document, plain, node) in enumerate(zip(documents, without_sections, sections, strict=True)):
        yield plain
        if node is None or index <= max(nulls, default=-1):
            continue
        if not isinstance(node.value, dict):
            place = f"{document.file}:{node.origin.line}:{node.origin.column}"
            raise identity_error(
                "pretraining is not a mapping", "write config sections, indented, below `pretraining:`", place
            )
        yield replace(document, root=node, flaws=())
