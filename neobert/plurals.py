"""Plurals and lists in messages."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return number and noun, such as 1 step or 1,000 steps; the plural has an s unless it is given."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def listed(names: Sequence[str], most: int = 5, separator: str = ", ") -> str:
    """List the first names, and how many more there are."""
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{separator.join(names[:most])}{rest}"
