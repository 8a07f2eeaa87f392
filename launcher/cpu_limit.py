"""The limit of CPU time (`ulimit -t`): every process of a launch inherits it."""

from __future__ import annotations

import resource
import signal

CPU_LIMIT = "not restarting: each session gets the same limit; raise it (ulimit -t), then resume"
NEARLY = 0.9


def cpu_limit_s() -> int | None:
    """The CPU time after which the kernel ends a process, in seconds; None for no limit."""
    limits = [limit for limit in resource.getrlimit(resource.RLIMIT_CPU) if limit != resource.RLIM_INFINITY]
    return min(limits, default=None)


def children_cpu_s() -> float:
    """CPU time of all children that have ended, and of theirs, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def used_up(number: int, cpu_s: float, num_processes: int) -> bool:
    """Whether a signal that killed one of several equal processes was the kernel's, at its limit of CPU time.

    SIGXCPU is sent for nothing else. SIGKILL has many senders: the CPU time that was taken has to fit.
    """
    limit_s = cpu_limit_s()
    if number == signal.SIGXCPU:
        return True
    return number == signal.SIGKILL and limit_s is not None and cpu_s >= NEARLY * limit_s * num_processes
