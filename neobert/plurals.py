"""Formatting of counts with plurals, and of lists, in messages."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun, such as "1 step" or "1,000 steps"; `plural` defaults to noun + s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def listed(names: Sequence[str], most: int = 5, separator: str = ", ") -> str:
    """Join the first `most` names, and append the number of further names, such as "a, b and 3 more"."""
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{separator.join(names[:most])}{rest}"
