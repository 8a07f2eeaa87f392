"""Sanitizing of untrusted text (from files, names, other programs) for printing."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """Replace unprintable characters (control characters, line breaks, bidi marks) with U+FFFD.

    Args:
        keep: unprintable characters that are not replaced, such as a tab.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else "\N{REPLACEMENT CHARACTER}" for char in text
    )
