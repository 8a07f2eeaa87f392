"""Canonical form of a configuration, for logs, checkpoints, receipts and hashes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from neobert.config.schema import RunConfig

if TYPE_CHECKING:
    import yaml

PLAIN = (str, int, float)


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Convert to plain values with sorted keys: lists for tuples, ISO 8601 for dates."""
    result: dict[str, Any] = to_plain(config)
    return result


def to_plain(value: Any) -> Any:
    """Convert any value of a configuration to plain values, like `to_dict`."""
    if value is None or isinstance(value, PLAIN):
        return value
    if is_dataclass(value):
        names = sorted(field.name for field in fields(value))
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {name: to_plain(value[name]) for name in sorted(value)}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a canonical config by dotted key. The section `variables` is kept as one value."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and prefix + name != "variables":
            leaves |= flatten(value, f"{prefix}{name}.")
        else:
            leaves[prefix + name] = value
    return leaves


def to_json(value: Any) -> str:
    """Return canonical JSON: sorted keys, ASCII, no white space."""
    return json.dumps(
        to_plain(value), sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False
    )


def sha256(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON, in hex."""
    from hashlib import sha256 as sha256_of

    return sha256_of(to_json(value).encode("ascii")).hexdigest()


def digest(config: RunConfig) -> str:
    """Return the SHA-256 of the configuration: equal for equal configurations, on every machine."""
    return sha256(config)


def dump_yaml(config: RunConfig) -> str:
    """Return YAML that loads to an equal configuration."""
    import yaml

    text: str = yaml.dump(to_dict(config), Dumper=_dumper(), sort_keys=True, allow_unicode=True, width=100)
    return text


def _dumper() -> type[yaml.SafeDumper]:
    """Return a YAML dumper that quotes strings that YAML 1.1 or 1.2 would parse as another type."""
    import yaml

    from neobert.config.yaml_reader import read_scalar

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, _: Any) -> bool:
            return True

    def represent_text(dumper: Dumper, text: str) -> yaml.ScalarNode:
        style = None if isinstance(read_scalar(text), str) and text.isprintable() else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, represent_text)
    return Dumper
