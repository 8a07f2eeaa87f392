"""PR_SET_PDEATHSIG: a signal from the kernel when the parent process dies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def dying_with_parent(number: int) -> Callable[[], object]:
    """Return a function that makes the kernel send this signal when the parent dies.

    A parent that is killed can forward nothing to its child.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, number)
