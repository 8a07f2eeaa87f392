"""Merging of config layers, resolution of relative paths, and sections that the task does not use."""

from __future__ import annotations

import os.path
from collections.abc import Collection, Iterator, Mapping

from neobert.config.annotations import TAG
from neobert.config.canonical import to_plain
from neobert.config.keys import (
    describe_field,
    discriminated_sections,
    keys_replacing_others,
    path_keys,
    path_keys_of_lists,
    pinned_keys,
    reference_keys,
    sections,
)
from neobert.config.nodes import Flaw, Node, Path, children, find, put, to_plain_value

TASK = ("task",)
WEIGHTS = ("model", "pretrained_checkpoint")
REVISION = ("model", "revision")
TOKENIZER_PATH, TOKENIZER_NAME = ("tokenizer", "path"), ("tokenizer", "name")
TOKENIZER_REVISION = ("tokenizer", "revision")
GIVEN = ("file", "override")
FILE_OF_FUNCTION = ".py:"
"""Mark of a function that is named by its file; other values name a module or an entry point."""


def lay_over(base: Node, over: Node) -> Node:
    """Merge a layer over the layers below.

    A key of `over` that replaces other keys removes them from `base`, unless `over` sets them too. If `over`
    changes the `type` of a section, keys that the new type lacks are removed from `base`, and so are a
    profile's keys, which are sizes of another model.
    """
    for section, types in discriminated_sections().items():
        base = _remove_keys_of_other_type(base, _section_type(over, section), section, types)
    for path, replaced in keys_replacing_others().items():
        if _sets_key(over, path):
            for other in replaced:
                if _sets_key(base, other) and find(over, other) is None:
                    base = put(base, other, None)
    return merge(base, over)


def _remove_keys_of_other_type(
    base: Node, chosen: str, section: str, types: Mapping[str, frozenset[str]]
) -> Node:
    """If a section of `base` has another type, remove its profile keys and keys that type `chosen` lacks."""
    below = _section_type(base, section) or next(iter(types))
    held = find(base, (section,))
    if chosen not in types or below == chosen or held is None or not isinstance(held.value, dict):
        return base
    others = frozenset[str]().union(*types.values()) - types[chosen]
    for name, node in held.value.items():
        if name in others or node.origin.kind == "profile":
            base = put(base, (section, name), None)
    return base


def _section_type(layer: Node, section: str) -> str:
    node = find(layer, (section, TAG))
    return str(node.value) if node is not None else ""


def _sets_key(layer: Node, path: Path) -> bool:
    """Return whether a layer sets a key to a value other than null or an empty list, which replace no key."""
    node = find(layer, path)
    return node is not None and node.value not in (None, ())


def merge(base: Node, over: Node) -> Node:
    """Merge one tree over another. Every value keeps its file position."""
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)):
        return over
    entries = dict(base.value)
    for name, child in over.value.items():
        entries[name] = merge(entries[name], child) if name in entries else child
    # Findings about a section that an override or an implied value extends point at the file.
    held_by = base if over.origin.kind in ("override", "default") else over
    return Node(entries, held_by.origin, held_by.key)


def resolve_file_relative_paths(root: Node) -> Node:
    """Convert paths in run files to paths relative to the working directory.

    Paths of profiles and of the command line are already relative to the working directory.
    """
    for path, node, value in _local_paths(root):
        if node.origin.kind == "file":
            root = put(root, path, Node(_relative_to_file(value, node.origin.file), node.origin, node.key))
    return root


def with_tokenizer_of_weights(root: Node) -> Node:
    """Name the initial weights' tokenizer, in their folder or on the Hub, if no layer sets a tokenizer.

    Only for weights that a file or an argument names: a resolved config already names its tokenizer.
    """
    weights = find(root, WEIGHTS)
    if weights is None or weights.origin.kind not in GIVEN or not isinstance(weights.value, str):
        return root
    if any(_sets_tokenizer(root, key) for key in (TOKENIZER_PATH, TOKENIZER_NAME)):
        return root
    revision = find(root, REVISION)
    if revision is not None and isinstance(revision.value, str):
        return _with_tokenizer(root, {TOKENIZER_NAME: weights, TOKENIZER_REVISION: revision})
    place = os.path.expanduser(weights.value)
    folder = weights.value if os.path.isdir(place) else os.path.dirname(weights.value)
    if not os.path.isfile(os.path.join(os.path.expanduser(folder), "tokenizer.json")):
        return root
    return _with_tokenizer(root, {TOKENIZER_PATH: Node(folder, weights.origin, weights.key)})


def _sets_tokenizer(root: Node, key: Path) -> bool:
    """Return whether a layer sets a tokenizer key; null in a file or argument requests a trained one."""
    node = find(root, key)
    return node is not None and (node.value is not None or node.origin.kind in GIVEN)


def _with_tokenizer(root: Node, keys: Mapping[Path, Node]) -> Node:
    first = next(iter(keys.values()))
    section = Node({str(path[-1]): node for path, node in keys.items()}, first.origin, first.key)
    return merge(root, Node({"tokenizer": section}, first.origin, first.key))


def _local_paths(root: Node) -> Iterator[tuple[Path, Node, str]]:
    pinned_by = pinned_keys()
    for path, words in path_keys().items():
        if path in pinned_by and _sets_key(root, pinned_by[path]):
            continue
        yield from (found for found in _strings_at(root, path) if found[2] not in words)
    for path, names in path_keys_of_lists().items():
        items = find(root, path)
        count = len(items.value) if items is not None and isinstance(items.value, tuple) else 0
        for place in ((*path, index, name) for index in range(count) for name in names):
            yield from _strings_at(root, place)
    for path in reference_keys():
        yield from (found for found in _strings_at(root, path) if FILE_OF_FUNCTION in found[2])


def _strings_at(root: Node, path: Path) -> Iterator[tuple[Path, Node, str]]:
    """Yield (path, node, text) of the text at a path, or of each text in the list there."""
    node = find(root, path)
    if node is not None and isinstance(node.value, str):
        yield path, node, node.value
    elif node is not None and isinstance(node.value, tuple):
        for index in range(len(node.value)):
            yield from _strings_at(root, (*path, index))


def _relative_to_file(value: str, file: str) -> str:
    folder = os.path.dirname(file)
    is_fixed = not value or value.startswith("~") or "://" in value or os.path.isabs(value)
    return value if is_fixed or os.path.normpath(folder or ".") == "." else os.path.join(folder, value)


SectionsRead = Mapping[str, Collection[str]]
"""Names of the sections that each task reads, by task name."""


def unread_section_flaws(root: Node, sections_read: SectionsRead) -> Iterator[Flaw]:
    """Yield an error for each section that a run file or an argument sets but the task does not use.

    If the config sets `task`, values equal to the default are ignored, since a resolved config contains all
    defaults. Values of a profile are ignored, since a profile may serve several tasks.
    """
    task, is_named = _task_name(root), find(root, TASK) is not None
    if task not in sections_read:
        return
    for name in sections():
        section = find(root, (name,))
        if section is None or name in sections_read[task]:
            continue
        place = next(
            (
                node
                for key, node in children(section)
                if _is_set_explicitly(name, key, node, may_be_default=is_named)
            ),
            None,
        )
        if place is not None:
            readers = [f"task: {other}" for other, read in sections_read.items() if name in read]
            choice = f", or write {' or '.join(readers)}" if readers else ""
            message = f"section {name} is not used by task {task}"
            yield Flaw("CFG001", (name,), message, f"remove section {name}{choice}", place.key)


def _task_name(root: Node) -> str:
    node, info = find(root, TASK), describe_field(TASK)
    assert info is not None
    return str(info.default if node is None else node.value)


def _is_set_explicitly(section: str, key: str | int, node: Node, *, may_be_default: bool) -> bool:
    info = describe_field((section, key))
    is_other = not may_be_default or info is None or to_plain(info.default) != to_plain_value(node)
    return node.key.kind in GIVEN and is_other
