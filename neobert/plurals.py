"""Formatting of counts with plurals, of lists, and of shares in percent, in messages."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun, such as "1 step" or "1,000 steps"; `plural` defaults to noun + s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def listed(names: Sequence[str], most: int = 5, separator: str = ", ") -> str:
    """Join the first `most` names, and append the number of further names, such as "a, b and 3 more"."""
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{separator.join(names[:most])}{rest}"


def percent(share: float) -> str:
    """Format a share in percent with one decimal; only 0 is shown as 0%, and only 1 as 100%."""
    text = f"{share:.1%}"
    if text == "100.0%" and share < 1:
        return "more than 99.9%"
    return "less than 0.1%" if text == "0.0%" and share > 0 else text
