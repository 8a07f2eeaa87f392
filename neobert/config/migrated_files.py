"""Files of other trainers, translated into this schema: keys, values and positions.

The result is never trained. It lets the rules check the intended run, in addition to listing keys to rename.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from neobert.config.annotations import annotation_at, literal_choices
from neobert.config.document import Document
from neobert.config.hydrate import HydrationError, hydrate
from neobert.config.key_suggestions import key_in_other_section
from neobert.config.keys import all_keys, sections
from neobert.config.migrated_keys import (
    ANY_BATCH,
    advice_for_key,
    advice_for_value,
    no_effect_reason,
    translate_entry,
    translated_choice,
)
from neobert.config.nodes import Node, Path, Scalar, children, find, join, walk
from neobert.config.schema import RunConfig

TARGETS = re.compile(r"write (\w+\.\w+)(?: and (\w+\.\w+))?(?::.*|[,;].*)?")
ROWS = "trainer.per_device_train_batch_size"
OTHER_UNITS = ("epochs", "num_train_epochs", "min_lr", "warmup_ratio", "decay_ratio")
OTHER_DEFAULTS: dict[str, Scalar] = {"trainer.save_steps": 0}
"""Defaults of the other trainer for keys that its file omits."""
PLAIN = re.compile(r"write (\w+\.\w+)(?: and (\w+\.\w+))?(?P<more>; .*)?")
LONGEST_SHOWN = 60
NEXT_LINE = "\u0085"
"""YAML reads it as a line break, which becomes a space in quotes."""


def to_own_schema(document: Document) -> Document | None:
    """Return the document translated to this schema, with the original positions; None if nothing changes."""
    own = {path: node for path, node in _leaf_nodes(document.root) if _is_schema_key(path)}
    foreign = dict(_translate_leaves(document.root))
    if not foreign:
        return None
    values = _other_trainer_defaults(document.root, {**foreign, **own}) | foreign | own
    return replace(document, root=_build_tree(document.root, values), flaws=())


def without_paths(document: Document, refused: Iterable[Path]) -> Document:
    """Return the document without the values at these paths. Sections stay, and profiles are unchanged."""
    if document.kind == "profile":
        return document
    above = {path[:length] for path in refused for length in range(1, len(path) + 1)}
    kept = {place: node for place, node in _leaf_nodes(document.root) if place not in above}
    return replace(document, root=_build_tree(document.root, kept))


def _leaf_nodes(root: Node) -> Iterator[tuple[Path, Node]]:
    """Yield the path and node of each value that is neither a mapping nor inside a list."""
    for path, node in walk(root):
        if not isinstance(node.value, dict) and all(isinstance(part, str) for part in path):
            yield path, node


def _is_schema_key(path: Path) -> bool:
    return join(path) in all_keys() or path[0] == "variables"


def _translate_leaves(root: Node) -> Iterator[tuple[Path, Node]]:
    for path, node in _leaf_nodes(root):
        if _is_schema_key(path) or overriding_warmup_steps(path, root):
            continue
        if node.value is not None and no_effect_reason(str(path[-1]), node.value):
            continue
        if translated := translate_entry(str(path[-1]), node.value):
            if not isinstance(translated.value, list):
                yield tuple(translated.key.split(".")), replace(node, value=translated.value)
            continue
        for target in _target_keys(path):
            yield tuple(target.split(".")), _translate_value(target, node)


def overriding_warmup_steps(path: Path, root: Node) -> int:
    """Return the `warmup_steps` that override `warmup_ratio` in transformers; 0 if there are none."""
    if path[-1] != "warmup_ratio":
        return 0
    places = ((*path[:-1], "warmup_steps"), ("scheduler", "warmup_steps"))
    steps = [node.value for place in places if (node := find(root, place)) is not None]
    return next((each for each in steps if type(each) is int and each > 0), 0)


def _target_keys(path: Path) -> tuple[str, ...]:
    """Return this schema's keys for a key of another trainer, by the rename table or by equal name.

    Empty if there are none, or if the key counts in another unit.
    """
    name, advice = str(path[-1]), advice_for_key(path)
    if name in OTHER_UNITS:
        return ()
    if advice == ANY_BATCH:
        return (ROWS,)
    if advice:
        written = TARGETS.fullmatch(advice)
        return tuple(key for key in written.groups() if key in all_keys()) if written else ()
    meant = key_in_other_section(join(path)) if len(path) <= 2 else ""
    return (meant,) if meant else ()


@cache
def _last_key_parts() -> frozenset[str]:
    """Return the last part of every key of the schema.

    Files may contain thousands of other names; only names in this set are passed to `suggest_key`.
    """
    return frozenset(key.rpartition(".")[2] for key in all_keys())


def _translate_value(target: str, node: Node) -> Node:
    value = node.value
    return node if isinstance(value, dict | tuple) else replace(node, value=translated_choice(target, value))


def _other_trainer_defaults(root: Node, known: dict[Path, Node]) -> dict[Path, Node]:
    """Return the other trainer's defaults, at the position of the section that sets the number of steps.

    Empty without such a section, or if it sets `max_steps`, as trainers that save by default do.
    """
    steps = known.get(("trainer", "max_steps"))
    if steps is None or not isinstance(root.value, dict):
        return {}
    for name, node in root.value.items():
        is_foreign = name not in sections() and isinstance(node.value, dict) and "max_steps" not in node.value
        if is_foreign and any(child.origin == steps.origin for _, child in children(node)):
            return {
                tuple(key.split(".")): Node(value, node.key, node.key)
                for key, value in OTHER_DEFAULTS.items()
            }
    return {}


def _build_tree(root: Node, leaves: dict[Path, Node]) -> Node:
    """Build a tree from values by path; sections keep their position, missing ones get the file's position.

    An error about a key that is not set is reported at the position of its section.
    """
    entries: dict[str, Node] = {}
    for path, node in leaves.items():
        place, holder = entries, root
        for part in map(str, path[:-1]):
            holder = find(holder, (part,)) or Node({}, root.origin, root.key)
            section = place.setdefault(part, Node({}, holder.origin, holder.key))
            assert isinstance(section.value, dict)
            place = section.value
        place[str(path[-1])] = node
    return Node(entries, root.origin, root.key)


def is_accepted_value(target: str, value: Any) -> bool:
    """Return whether the schema accepts a value for a key."""
    nested: Any = value
    for name in reversed(target.split(".")):
        nested = {name: nested}
    try:
        hydrate(RunConfig, nested)
    except HydrationError:
        return False
    return True


def advice_for_entry(path: Path, value: Any) -> str:
    """Return the hint for an entry of another trainer, with the new value; empty if there is none."""
    if value is None and not advice_for_key(path) and join(path).rpartition(".")[2] not in _last_key_parts():
        return ""
    if reason := no_effect_reason(str(path[-1]), value):
        return f"remove the line; {reason}"
    if (translated := translate_entry(str(path[-1]), value)) and is_accepted_value(
        translated.key, translated.value
    ):
        return f"write {translated.key}: {yaml_text(translated.value)}"
    return with_value(advice_for_key(path), value)


def with_value(advice: str, value: object) -> str:
    """Append the value to a hint `write KEY`, or the allowed values if the value has no counterpart."""
    written = PLAIN.fullmatch(advice)
    if not written or isinstance(value, dict | tuple):
        return advice
    targets = [target for target in written.groups() if target in all_keys()]
    entries = " and ".join(f"{target}{_value_text(target, value)}" for target in targets)
    return f"write {entries}{written['more'] or ''}"


def _value_text(target: str, value: Any) -> str:
    translated = translated_choice(target, value)
    if (
        value is not None
        and is_accepted_value(target, translated)
        and len(text := yaml_text(translated)) <= LONGEST_SHOWN
    ):
        return f": {text}"
    if (advice := advice_for_value(target, value)).startswith("write "):
        return f": {advice.removeprefix('write ')}"
    choices = literal_choices(annotation_at(tuple(target.split("."))))
    return f": {' or '.join(choices)}" if choices else ""


def yaml_text(value: Any) -> str:
    """Format a value as one line of YAML; text that would be parsed as another type is quoted."""
    if isinstance(value, list):
        return f"[{', '.join(map(yaml_text, value))}]"
    if (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z_/][\w./-]*", value)
        # YAML 1.1 reads these words as booleans or null
        and value.lower() not in ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
    ):
        return value
    return json.dumps(value, ensure_ascii=False).replace(NEXT_LINE, "\\u0085")
