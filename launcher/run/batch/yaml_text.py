"""YAML for people: keys in the given order, commands as blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Dumper that writes text of several lines as a block."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent)


def dump(*documents: Mapping[str, Any]) -> str:
    """Return YAML documents."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=1000)
