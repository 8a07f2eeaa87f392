"""Which lines of the judged files a test runs, so that a mutant meets only the tests that can see it."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Lines = dict[str, set[int]]


@contextmanager
def watching(files: Iterable[str]) -> Iterator[Lines]:
    """Collect the lines that run in some files, by file."""
    seen: Lines = defaultdict(set)
    wanted = frozenset(files)

    def enter(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        file = frame.f_code.co_filename
        if file not in wanted:
            return None
        lines = seen[file]

        def follow(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            lines.add(frame.f_lineno)
            return follow

        return follow(frame, event, argument)

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield seen
    finally:
        sys.settrace(before)
