"""JSON Schema for editors: the schema itself, and what a profile file adds."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from neobert.config.annotations import hints_of, members_of
from neobert.config.hydrate import pydantic_schema
from neobert.config.schema import RunConfig

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PROFILE_KEYS: dict[str, Any] = {
    "about": {"type": "object", "description": "Profiles: name, kind, intent, requires, expects."},
    "extends": {"type": "string", "description": "Profiles: the profile that this one builds on."},
}


def json_schema(root: Any = RunConfig) -> dict[str, Any]:
    """The JSON Schema (2020-12) of run files and profiles."""
    schema = pydantic_schema(root)
    definitions = schema.get("$defs", {})
    _describe(schema, root)
    for hint in hints_of(root).values():
        for member in members_of(hint):
            _describe(definitions[member.__name__], member)
    schema["properties"] |= PROFILE_KEYS
    return {"$schema": DIALECT, **schema, "title": "neobert-launch run file or profile"}


def _describe(schema: dict[str, Any], kind: Any) -> None:
    schema["description"] = (kind.__doc__ or "").strip()
    for item in fields(kind):
        schema["properties"][item.name]["description"] = item.metadata.get("description", "")
