"""Functions put in another's place for a while: how a probe listens, and how a fault is planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

Place = tuple[ModuleType, str]
Function = Callable[..., Any]


@contextmanager
def replaced(places: Sequence[Place], wrap: Callable[[Function, Place], Function]) -> Iterator[None]:
    """Put `wrap(function, place)` where each function stands, while the block runs."""
    before = [(place, getattr(*place)) for place in places]
    try:
        for place, function in before:
            setattr(*place, wrap(function, place))
        yield
    finally:
        for place, function in before:
            setattr(*place, function)
