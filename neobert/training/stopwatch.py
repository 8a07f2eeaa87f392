"""Where the time of a step goes. On a GPU nothing waits for it until somebody reads the times.

A mark is taken on the clock of the device, on a GPU as an event in its queue. Between two marks lies what the
device did or waited for: the sections of a step add up to the step, and a wait of the host that the device
did not notice has cost nothing.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

STEP = "step"
ALWAYS = ("data_wait",)
SECTIONS = (*ALWAYS, "copy", "forward", "backward", "clip", "optimizer")
BREAKDOWN = (STEP, *SECTIONS)

Span = tuple[str, Any, Any]


@dataclass(frozen=True, slots=True)
class Times:
    """What a reading says.

    Attributes:
        elapsed_s: seconds since the last reading by the clock of the host, without the pauses.
        steps: milliseconds in each section, for each step; `step` is the whole of it.
        pauses_ms: milliseconds in each kind of pause.
    """

    elapsed_s: float
    steps: tuple[Mapping[str, float], ...]
    pauses_ms: Mapping[str, float]

    def mean_ms(self, name: str) -> float:
        """Return the milliseconds of a step in a section; there was at least one step."""
        return sum(step.get(name, 0.0) for step in self.steps) / len(self.steps)


class Stopwatch:
    """Adds up named sections between two readings. A section that it was not made for costs nothing."""

    def __init__(self, device: torch.device, sections: Collection[str] = ALWAYS) -> None:
        self._is_on_gpu = device.type == "cuda"
        self._sections = frozenset(sections)
        self._steps: list[list[Span]] = []
        self._pauses: list[Span] = []
        self._pause_start: Any = None
        self._started_s = time.perf_counter()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count the sections in the block to one step."""
        self._steps.append([])
        with self.section(STEP):
            yield

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Time the block as a part of the step that is under way."""
        if name not in self._sections:
            yield
            return
        start = self._mark()
        yield
        self._steps[-1].append((name, start, self._mark()))

    @contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """Leave the block out of the elapsed time: it is no training."""
        self._pause_start = self._mark()
        yield
        self._pauses.append((name, self._pause_start, self._mark()))

    def read(self) -> Times:
        """Return the times since the last reading, and start anew.

        On a GPU, call it after something that waited for the device. Where that was in a pause, the wait was
        for the steps before it and counts as theirs: the pause begins here.
        """
        now_s, self._pause_start = time.perf_counter(), self._mark()
        pauses_ms = _totals(self._pauses)
        elapsed_s = now_s - self._started_s - sum(pauses_ms.values()) / 1000
        steps = tuple(map(_totals, self._steps))
        self._steps, self._pauses, self._started_s = [], [], now_s
        return Times(elapsed_s, steps, pauses_ms)

    def _mark(self) -> Any:
        if not self._is_on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _totals(spans: Collection[Span]) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for name, start, end in spans:
        totals[name] += _between_ms(start, end)
    return dict(totals)


def _between_ms(start: Any, end: Any) -> float:
    if isinstance(start, float):
        return (end - start) * 1000
    return float(start.elapsed_time(end))
