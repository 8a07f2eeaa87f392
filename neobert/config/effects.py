"""Effects of a change of a key, as declared in the schema: the single source of policies about changes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from neobert.config.annotations import fields_of, hints_of
from neobert.config.keys import all_keys
from neobert.config.schema import PER_KEY, Effect, RunConfig


@cache
def effect_of(key: str) -> Effect | None:
    """Return what a change of a key affects: as the key states it, else as its section does.

    A key that another version of the schema had is judged by its section; None where that does not tell.
    """
    own = _metadata(key).get("affects") or _metadata(key.partition(".")[0]).get("affects")
    return None if own == PER_KEY else own


@cache
def keys_affecting(*effects: Effect) -> frozenset[str]:
    """Return the dotted keys whose change affects one of these."""
    return frozenset(key for key in all_keys() if effect_of(key) in effects)


def is_compared_by_content(key: str) -> bool:
    """Tell whether the data that a key names is compared on resume, and not the key."""
    return bool(_metadata(key).get("by_content"))


def without_effects(values: dict[str, Any], effects: Iterable[Effect]) -> dict[str, Any]:
    """Return flat dotted keys and their values, less those whose change affects only these."""
    left_out = frozenset(effects)
    return {key: value for key, value in values.items() if effect_of(key) not in left_out}


def _metadata(key: str) -> Any:
    section, _, name = key.rpartition(".")
    holder = hints_of(RunConfig).get(section) if section else RunConfig
    return next((item.metadata for item in fields_of(holder) if item.name == name), {})
