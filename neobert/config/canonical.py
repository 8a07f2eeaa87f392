"""Canonical form of a configuration, for logs, checkpoints, receipts and hashes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date
from functools import cache
from typing import Any

from neobert.config.schema import RunConfig

PLAIN = (str, int, float)


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Convert a configuration to plain values with sorted keys: lists for tuples, ISO 8601 for dates."""
    result: dict[str, Any] = to_plain(config)
    return result


def to_plain(value: Any) -> Any:
    """Convert a config value to plain values: keys sorted, lists for tuples, ISO 8601 for dates."""
    if value is None or isinstance(value, PLAIN):
        return value
    if is_dataclass(value):
        kind: Any = type(value)
        return {name: to_plain(getattr(value, name)) for name in _sorted_field_names(kind)}
    if isinstance(value, Mapping):
        return {name: to_plain(value[name]) for name in sorted(value)}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value


@cache
def _sorted_field_names(kind: Any) -> tuple[str, ...]:
    return tuple(sorted(field.name for field in fields(kind)))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a canonical config by dotted key. The section `variables` is kept as one value."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and prefix + name != "variables":
            leaves |= flatten(value, f"{prefix}{name}.")
        else:
            leaves[prefix + name] = value
    return leaves


def to_json(value: Any) -> str:
    """Return canonical JSON: sorted keys, ASCII, no whitespace."""
    return json.dumps(
        to_plain(value), sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False
    )


def sha256(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON, in hex."""
    from hashlib import sha256 as sha256_of

    return sha256_of(to_json(value).encode("ascii")).hexdigest()


def digest(config: RunConfig) -> str:
    """Return the SHA-256 of the configuration's canonical JSON, in hex."""
    return sha256(config)
