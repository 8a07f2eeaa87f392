"""Where the time of a step goes. On a GPU nothing waits for it until somebody reads the times."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Stopwatch:
    """Adds up named sections between two readings."""

    def __init__(self, device: torch.device) -> None:
        self._is_on_gpu = device.type == "cuda"
        self._spans: list[tuple[str, Any, Any]] = []
        self._started_s = time.perf_counter()
        self._excluded_s = 0.0

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Time what the device does in the block."""
        start = self._mark()
        yield
        self._spans.append((name, start, self._mark()))

    @contextmanager
    def host_section(self, name: str) -> Iterator[None]:
        """Time how long the host is in the block."""
        start = time.perf_counter()
        yield
        self._spans.append((name, start, time.perf_counter()))

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Leave the block out of the elapsed time: it is no training."""
        start = time.perf_counter()
        yield
        self._excluded_s += time.perf_counter() - start

    def read(self) -> tuple[float, dict[str, float]]:
        """Return seconds since the last reading and milliseconds of each section, and start anew.

        On a GPU, call it after something that waited for the device.
        """
        totals: dict[str, float] = defaultdict(float)
        for name, start, end in self._spans:
            totals[name] += _between_ms(start, end)
        elapsed_s = time.perf_counter() - self._started_s - self._excluded_s
        self._spans, self._started_s, self._excluded_s = [], time.perf_counter(), 0.0
        return elapsed_s, dict(totals)

    def _mark(self) -> Any:
        if not self._is_on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between_ms(start: Any, end: Any) -> float:
    if isinstance(start, float):
        return (end - start) * 1000
    return float(start.elapsed_time(end))
