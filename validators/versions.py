"""Comparison of versions by release number, without local and pre-release parts."""

from __future__ import annotations

import re

NUMBER = re.compile(r"\d+")


def release(version: str) -> tuple[int, ...]:
    """Return the release numbers: `2.13.0+cpu` is (2, 13, 0), and `2.13.0rc1` is (2, 13, 0) too."""
    parts: list[int] = []
    for part in version.partition("+")[0].split("."):
        leading = NUMBER.match(part)
        if leading is None:
            break
        parts.append(int(leading[0]))
    return tuple(parts)


def is_older(version: str, oldest: str) -> bool:
    """Return whether `version` precedes `oldest`; missing numbers count as 0."""
    have, need = release(version), release(oldest)
    width = max(len(have), len(need))
    return _padded(have, width) < _padded(need, width)


def _padded(numbers: tuple[int, ...], width: int) -> tuple[int, ...]:
    return numbers + (0,) * (width - len(numbers))
