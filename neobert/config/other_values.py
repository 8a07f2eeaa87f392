"""Other values for keys that are not set, to find out which findings depend on a default."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

from neobert.config.annotations import TAG, annotation_at, choices_of, is_union, unwrap
from neobert.config.schema import RunConfig

IN_PLACE_OF_NULL: dict[Any, Any] = {str: "other", int: 8, float: 0.5}


def with_other_values(config: RunConfig, keys: Iterable[str]) -> RunConfig:
    """Return the config with another value for each of these `section.key`; types of sections are kept.

    The result is for comparisons only: relations between keys are not respected.
    """
    changes: dict[str, dict[str, Any]] = {}
    for key in keys:
        section, _, name = key.rpartition(".")
        held = getattr(config, section, None)
        if name != TAG and hasattr(held, name):
            other = _other(annotation_at((section, name)), getattr(held, name))
            changes.setdefault(section, {})[name] = other
    sections = {section: replace(getattr(config, section), **values) for section, values in changes.items()}
    return replace(config, **sections)


def _other(annotation: Any, value: Any) -> Any:
    """Return a value that differs from `value`, if the type of the key is a simple one."""
    bare, _ = unwrap(annotation)
    if value is None:
        return IN_PLACE_OF_NULL.get(get_args(bare)[0] if is_union(bare) else bare)
    if choices := choices_of(annotation):
        return choices[choices.index(value) - 1]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value // 2 if value > 1 else value + 1
    if isinstance(value, float):
        return value / 2 or IN_PLACE_OF_NULL[float]
    if isinstance(value, tuple):
        return tuple(_other(None, each) for each in value)
    return f"{value}-other" if isinstance(value, str) else value
