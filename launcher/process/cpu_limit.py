"""Limit of CPU time (`ulimit -t`), which all processes of a launch inherit."""

from __future__ import annotations

import resource
import signal

CPU_LIMIT = "not restarting: each session has the same CPU limit; raise it (ulimit -t), then resume"
NEARLY = 0.9


def cpu_limit_s() -> int | None:
    """Return the CPU time in seconds after which the kernel ends a process; None without a limit."""
    limits = [limit for limit in resource.getrlimit(resource.RLIMIT_CPU) if limit != resource.RLIM_INFINITY]
    return min(limits, default=None)


def children_cpu_s() -> float:
    """Return the CPU time of all ended children and their descendants, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def used_up(number: int, cpu_s: float, num_processes: int) -> bool:
    """Return whether the kernel sent a fatal signal to one of several equal processes at the CPU limit.

    SIGXCPU has no other cause. SIGKILL has many, so the CPU time of the processes must match too.
    """
    if number == signal.SIGXCPU:
        return True
    limit_s = cpu_limit_s()
    return number == signal.SIGKILL and limit_s is not None and cpu_s >= NEARLY * limit_s * num_processes
