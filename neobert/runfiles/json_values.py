"""Type checks of values from untrusted JSON files."""

from __future__ import annotations

import json
import math
from typing import Any, TypeGuard

LARGEST = 2**63
"""Exclusive upper bound of accepted integers, which must fit into 64 bits."""


def parse_object(line: str | bytes) -> dict[str, Any] | None:
    """Parse a JSON object; return None if the text is not valid JSON or not an object."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer from 0 to 2**63 - 1."""
    return type(value) is int and 0 <= value < LARGEST


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite float or an integer of at most 64 bits; booleans are not numbers."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and abs(value) < LARGEST


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is a string."""
    return isinstance(value, str)


def is_text_mapping(value: object) -> TypeGuard[dict[str, str]]:
    """Return whether a value is a JSON object whose values are all strings."""
    return isinstance(value, dict) and all(map(is_text, value.values()))
