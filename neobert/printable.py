"""Text from outside (files, names, other programs) made safe to print."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """Replace every character that a terminal or log may interpret: controls, line breaks, bidi marks.

    Args:
        keep: unprintable characters to keep, such as a tab.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else "\N{REPLACEMENT CHARACTER}" for char in text
    )
