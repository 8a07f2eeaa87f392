"""Temporary replacement of functions, to record calls and to plant faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

Target = tuple[ModuleType, str]
Function = Callable[..., Any]


@contextmanager
def patched(targets: Sequence[Target], wrap: Callable[[Function, Target], Function]) -> Iterator[None]:
    """Replace each function with `wrap(function, target)` while the context is open."""
    before = [(target, getattr(*target)) for target in targets]
    try:
        for target, function in before:
            setattr(*target, wrap(function, target))
        yield
    finally:
        for target, function in before:
            setattr(*target, function)
