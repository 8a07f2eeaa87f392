"""Time of each section of a step, and its statistics over many steps.

Time is taken with CUDA events on a GPU and with the host's clock on a CPU; the host does not wait for the
device until the times are read. On a GPU, times are device times: a host wait that overlaps device work takes
no time. The lag is how much later than the host the device reaches the end of the backward pass; a lag near
zero means that the device waited for the host.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

STEP = "step"
ALWAYS = ("data_wait",)
SECTIONS = (*ALWAYS, "copy", "forward", "backward", "clip", "optimizer")
# Loader threads build microbatches while earlier steps run: not part of the step's own time.
COLLATE = "collate"
BREAKDOWN = (STEP, *SECTIONS, COLLATE)

Span = tuple[str, Any, Any]
OTHER = "other"
PARTS = (*SECTIONS, OTHER)
# Weight of a step in the moving average: about the last hundred count.
WEIGHT = 0.02
# Share of a step: a device that lags less had only the last launched kernels left to run.
MIN_LAG = 0.05
Step = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Times:
    """Times since the previous reading.

    Attributes:
        elapsed_s: seconds since the previous reading by the host's clock, pauses excluded.
        steps: milliseconds in each section, by step; `step` is the whole step.
        pauses: milliseconds in each kind of pause, by the step before the pause. A pause in progress at the
            previous reading is counted with the last step.
        lags_ms: milliseconds from the host's end of each backward pass to the device's; empty on a CPU.
    """

    elapsed_s: float
    steps: tuple[Mapping[str, float], ...]
    pauses: tuple[Mapping[str, float], ...]
    lags_ms: tuple[float, ...] = ()

    @property
    def pauses_ms(self) -> Mapping[str, float]:
        """Return the milliseconds in each kind of pause, over all steps."""
        return _sum_times(self.pauses)

    def mean_ms(self, name: str) -> float:
        """Return the mean milliseconds per step in a section. Requires at least one step."""
        return sum(step.get(name, 0.0) for step in self.steps) / len(self.steps)

    @property
    def host_bound_share(self) -> float | None:
        """Return the share of steps in which the GPU waited for kernel launches, or None on a CPU."""
        if not self.lags_ms:
            return None
        min_ms = MIN_LAG * self.elapsed_s * 1000 / len(self.lags_ms)
        return sum(lag_ms < min_ms for lag_ms in self.lags_ms) / len(self.lags_ms)


class Stopwatch:
    """Timer of the named sections of each step. Only the given sections are timed."""

    def __init__(self, device: torch.device, sections: Collection[str] = ALWAYS) -> None:
        self._is_on_gpu = device.type == "cuda"
        self._sections = frozenset(sections)
        self._steps: list[list[Span]] = []
        self._pauses: list[tuple[int, Span]] = []
        self._pause_start: Any = None
        self._launched: list[tuple[float, Any]] = []
        self._started_s, self._start = time.perf_counter(), self._record_time()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time the enclosed code as one step."""
        self._steps.append([])
        with self.section(STEP):
            yield

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Time the enclosed code as a section of the current step, if `name` is one of the sections."""
        if name not in self._sections:
            yield
            return
        start = self._record_time()
        yield
        self._steps[-1].append((name, start, self._record_time()))

    def add_time(self, name: str, took_ms: float) -> None:
        """Add a section's time, in milliseconds, to the current step; it was measured elsewhere.

        Does nothing for a name that is not one of the sections.
        """
        if name in self._sections:
            self._steps[-1].append((name, 0.0, took_ms / 1000))

    def mark_backward_launched(self) -> None:
        """Record the time at which the host has launched the backward pass; does nothing on a CPU."""
        if self._is_on_gpu:
            self._launched.append((time.perf_counter(), self._record_time()))

    @contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """Exclude the block from the elapsed time of training."""
        self._pause_start = self._record_time()
        yield
        self._pauses.append((len(self._steps), (name, self._pause_start, self._record_time())))

    def read(self) -> Times:
        """Return the times since the last reading, and reset.

        On a GPU, call this after the host has waited for the device. If called inside a pause, the time of
        the pause up to this call is counted as training time.
        """
        now_s, self._pause_start = time.perf_counter(), self._record_time()
        pauses = self._pauses_by_step()
        elapsed_s = now_s - self._started_s - sum(_sum_times(pauses).values()) / 1000
        steps, lags_ms = tuple(map(_total_by_name, self._steps)), self._lags_ms()
        self._steps, self._pauses, self._launched = [], [], []
        self._started_s, self._start = now_s, self._pause_start
        return Times(elapsed_s, steps, pauses, lags_ms)

    def _lags_ms(self) -> tuple[float, ...]:
        """Return the lag of each backward pass in milliseconds, from host and device times since `read`."""
        return tuple(
            _between_ms(self._start, mark) - (at_s - self._started_s) * 1000 for at_s, mark in self._launched
        )

    def _pauses_by_step(self) -> tuple[Mapping[str, float], ...]:
        """Sum the pauses after each step by name; a pause before the first step counts with the last step."""
        count = max(1, len(self._steps))
        spans: list[list[Span]] = [[] for _ in range(count)]
        for num_steps, span in self._pauses:
            spans[(num_steps - 1) % count].append(span)
        return tuple(map(_total_by_name, spans))

    def _record_time(self) -> Any:
        if not self._is_on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _total_by_name(spans: Collection[Span]) -> dict[str, float]:
    return _sum_by_name((name, _between_ms(start, end)) for name, start, end in spans)


def _sum_times(times: Collection[Mapping[str, float]]) -> dict[str, float]:
    return _sum_by_name(item for each in times for item in each.items())


def _sum_by_name(items: Iterable[tuple[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for name, took_ms in items:
        totals[name] += took_ms
    return dict(totals)


def _between_ms(start: Any, end: Any) -> float:
    if isinstance(start, float) and isinstance(end, float):
        return (end - start) * 1000
    return float(start.elapsed_time(end))


class Breakdown:
    """Breakdown of the step time by section, with moving averages that continue over metrics lines."""

    def __init__(self) -> None:
        self._averages: dict[str, float] = {}

    def fields(self, steps: Sequence[Step]) -> dict[str, float]:
        """Return mean, median, 95th percentile and moving average of each part. Requires a step."""
        fields: dict[str, float] = {}
        for name in (*PARTS, COLLATE):
            values = [part_ms(step, name) for step in steps]
            fields[f"time/{name}_ms"] = sum(values) / len(values)
            fields |= self.spread(name, values)
        return fields | self.spread(STEP, [step[STEP] for step in steps])

    def spread(self, name: str, values: Sequence[float]) -> dict[str, float]:
        """Return median, 95th percentile and moving average of a part, given its milliseconds per step."""
        average = self._averages.get(name, values[0])
        for value in values:
            average += WEIGHT * (value - average)
        self._averages[name] = average
        median, high = np.percentile(values, (50, 95)).tolist()
        return {
            f"time/{name}_p50_ms": median,
            f"time/{name}_p95_ms": high,
            f"time/{name}_moving_ms": average,
        }


def part_ms(step: Step, name: str) -> float:
    """Return the milliseconds spent in one part of a step; `other` is the time outside all sections."""
    if name == OTHER:
        return step[STEP] - sum(step.get(section, 0.0) for section in SECTIONS)
    return step.get(name, 0.0)
