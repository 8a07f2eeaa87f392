"""Seconds of the suite by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class Stopwatch:
    """Seconds of each phase that has ended; one that was stopped by an error counts too."""

    device: torch.device
    durations_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase, including its work on the device."""
        started = time.perf_counter()
        try:
            yield
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        finally:
            self.durations_s[name] = round(time.perf_counter() - started, 3)
