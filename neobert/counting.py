"""Counted things in words."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """1 step, 2 steps, 1,000 steps: for nouns that take an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
