"""Layers of configuration, laid over each other: mappings key by key, anything else as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neobert.config.annotations import TAG
from neobert.config.keys import discriminated_sections, replacing_keys
from neobert.config.schema import RunConfig
from neobert.config.tree import Node, Path, find, put


def lay_over(base: Node, over: Node, schema: Any = RunConfig) -> Node:
    """Lay a nearer layer over what is there; what its keys replace is removed, unless it gives that too.

    A layer that changes the `type` of a section removes the keys that only other types of it have.
    """
    for section, types in discriminated_sections(schema).items():
        base = _of_type(base, _type_in(over, section), section, types)
    for path, replaced in replacing_keys().items():
        if _gives(over, path):
            for other in replaced:
                if _gives(base, other) and find(over, other) is None:
                    base = put(base, other, None)
    return merge(base, over)


def _of_type(base: Node, chosen: str, section: str, types: Mapping[str, frozenset[str]]) -> Node:
    """Remove the section's keys that belong to other types, where the layer below was of another type."""
    below = _type_in(base, section) or next(iter(types))
    held = find(base, (section,))
    if chosen not in types or below == chosen or held is None or not isinstance(held.value, dict):
        return base
    others = frozenset[str]().union(*types.values()) - types[chosen]
    for name in others.intersection(held.value):
        base = put(base, (section, name), None)
    return base


def _type_in(layer: Node, section: str) -> str:
    node = find(layer, (section, TAG))
    return str(node.value) if node is not None else ""


def _gives(layer: Node, path: Path) -> bool:
    node = find(layer, path)
    return node is not None and node.value is not None


def merge(base: Node, over: Node) -> Node:
    """Lay one tree over another. Every value keeps the place it came from."""
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)):
        return over
    entries = dict(base.value)
    for name, child in over.value.items():
        entries[name] = merge(entries[name], child) if name in entries else child
    # An override opens no section of its own where a file did: findings point at the file's.
    held_by = base if over.origin.kind == "override" else over
    return Node(entries, held_by.origin, held_by.key)
