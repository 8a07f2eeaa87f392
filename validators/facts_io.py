"""Conversion of facts to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from neobert.errors import EXIT_USAGE, ProjectError
from neobert.runfiles.typed_json import parse_as
from validators import facts_gpu, facts_host, facts_numerics, facts_rehearsal, facts_run, facts_text
from validators.facts import SCHEMA_VERSION, Facts

MODULES = (facts_gpu, facts_host, facts_numerics, facts_rehearsal, facts_run, facts_text)
"""Modules of the types that the annotations of `Facts` refer to."""
UNREADABLE = "unreadable-facts"

T = TypeVar("T")


def facts_to_json(facts: Facts) -> str:
    """Return the facts as an indented JSON object with sorted keys."""
    return json.dumps(asdict(facts), indent=2, sort_keys=True, allow_nan=False) + "\n"


def facts_from_json(text: str, source: str = "facts.json") -> Facts:
    """Parse facts, at the top level or under the `facts` key of a recording.

    Raises ProjectError if the text is not JSON, has another schema version, or does not fit `Facts`.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid_facts_error(f"not JSON: {error}", source) from None
    if not isinstance(value, dict):
        raise _invalid_facts_error("not a JSON object", source)
    if isinstance(value.get("facts"), dict):
        value = value["facts"]
    version = value.get("schema_version")
    if version != SCHEMA_VERSION:
        raise _invalid_facts_error(
            f"schema_version is {version!r}, but this version reads {SCHEMA_VERSION}", source
        )
    try:
        return parse_as(Facts, value, MODULES)
    except ValueError as error:
        raise _invalid_facts_error(str(error), source) from None


def parse_record(kind: type[T], value: Mapping[str, Any]) -> T:
    """Build a dataclass from plain JSON values. Raises ProjectError if they do not match its fields."""
    try:
        return parse_as(kind, value)
    except ValueError as error:
        raise _invalid_facts_error(str(error), kind.__name__) from None


def _invalid_facts_error(message: str, source: str) -> ProjectError:
    hint = "record facts with `neobert-launch preflight --save-facts FILE`"
    return ProjectError(UNREADABLE, f"not a facts file: {message}", hint, source, EXIT_USAGE)
