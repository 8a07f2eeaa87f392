"""Layers of configuration, laid over each other: mappings key by key, anything else as a whole."""

from __future__ import annotations

from neobert.config.keys import replacing_keys
from neobert.config.tree import Node, Path, find, put


def lay_over(base: Node, over: Node) -> Node:
    """Lay a nearer layer over what is there; what its keys replace is removed, unless it gives that too."""
    for path, replaced in replacing_keys().items():
        if _gives(over, path):
            for other in replaced:
                if _gives(base, other) and find(over, other) is None:
                    base = put(base, other, None)
    return merge(base, over)


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
