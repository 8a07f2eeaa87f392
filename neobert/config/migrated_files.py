"""Entries of other trainers' files: what to write instead, with the value."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from neobert.config.annotations import annotation_at, choices_of
from neobert.config.hydrate import HydrationError, hydrate
from neobert.config.keys import all_keys
from neobert.config.migrated_keys import (
    advice_for_key,
    advice_for_value,
    no_effect_of,
    translated_choice,
    translation_of,
)
from neobert.config.nodes import Node, Path, find, join
from neobert.config.schema import RunConfig

PLAIN = re.compile(r"write (\w+\.\w+)(?: and (\w+\.\w+))?(?P<more>; .*)?")
LONGEST_SHOWN = 60
NEXT_LINE = "\u0085"
"""YAML reads it as a line break, which becomes a space in quotes."""


def warmup_in_force(path: Path, root: Node) -> int:
    """Return the `warmup_steps` that override `warmup_ratio` in transformers; 0 if there are none."""
    if path[-1] != "warmup_ratio":
        return 0
    places = ((*path[:-1], "warmup_steps"), ("scheduler", "warmup_steps"))
    steps = [node.value for place in places if (node := find(root, place)) is not None]
    return next((each for each in steps if type(each) is int and each > 0), 0)


@cache
def _names() -> frozenset[str]:
    """Return the last part of every key of the schema.

    Files may contain thousands of other names; only names in this set are passed to `suggest_key`.
    """
    return frozenset(key.rpartition(".")[2] for key in all_keys())


def is_legal(target: str, value: Any) -> bool:
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
    if value is None and not advice_for_key(path) and join(path).rpartition(".")[2] not in _names():
        return ""
    if reason := no_effect_of(str(path[-1]), value):
        return f"remove the line; {reason}"
    if (translated := translation_of(str(path[-1]), value)) and is_legal(translated.key, translated.value):
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
        and is_legal(target, translated)
        and len(text := yaml_text(translated)) <= LONGEST_SHOWN
    ):
        return f": {text}"
    if (advice := advice_for_value(target, value)).startswith("write "):
        return f": {advice.removeprefix('write ')}"
    choices = choices_of(annotation_at(tuple(target.split("."))))
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
