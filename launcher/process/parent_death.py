"""What the kernel tells a process whose parent is gone."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def dying_with_parent(number: int) -> Callable[[], object]:
    """A parent that is killed forwards nothing: the kernel then sends its child this signal instead."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, number)
