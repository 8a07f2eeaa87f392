"""Counted things in words."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """1 step, 2 steps, 1,000 steps; the plural takes an s unless it is given."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
