"""Rates of steps that take turns on one device, so that the same power limit applies to all."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

Step = Callable[[], int]
"""One training step; returns its number of useful tokens."""


def measure(
    steps: Mapping[str, Step], rounds: int, seconds: float, keep: Callable[[dict[str, list[float]]], None]
) -> dict[str, list[float]]:
    """Return useful tokens per second of each in every round, in turns; `keep` gets them after each round."""
    gc.collect()
    gc.freeze()
    rates: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            rates[name].append(round(rate(step, seconds)))
        keep(rates)
    return rates


def rate(step: Step, seconds: float) -> float:
    """Time whole cycles of batches for about this long, after two steps; the second is timed."""
    free_memory()
    cycle = getattr(step, "cycle", 1)
    step()
    lasted_s, _ = timed(step, 1)
    lasted_s, tokens = timed(step, cycle * max(1, round(seconds / lasted_s / cycle)))
    return tokens / lasted_s


def timed(step: Step, count: int) -> tuple[float, int]:
    synchronize()
    started_s = time.perf_counter()
    tokens = sum(step() for _ in range(count))
    synchronize()
    return time.perf_counter() - started_s, tokens


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def free_memory() -> None:
    """Free the allocator's cache, whose blocks have other sizes for the next contender."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def relative(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return the median, minimum and maximum ratio of two sides over the rounds."""
    ratios = [round(a / b, 4) for a, b in zip(ours, theirs, strict=True)]
    return {"median": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios)}
