"""Rates of steps that take turns on one device, so that the same power limit applies to all."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

Step = Callable[[], int]
"""One training step; returns its number of useful tokens."""


def measure_rates(
    steps: Mapping[str, Step], rounds: int, seconds: float, keep: Callable[[dict[str, list[float]]], None]
) -> dict[str, list[float]]:
    """Return the useful tokens per second of each side by round; call `keep` with them after every round."""
    gc.collect()
    gc.freeze()
    rates: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            rates[name].append(round(measure_rate(step, seconds)))
        keep(rates)
    return rates


def measure_rate(step: Step, seconds: float) -> float:
    """Return useful tokens per second over about `seconds` of whole batch cycles, after two warm-up steps."""
    free_memory()
    cycle = getattr(step, "cycle", 1)
    step()
    lasted_s, _ = time_steps(step, 1)
    lasted_s, tokens = time_steps(step, cycle * max(1, round(seconds / lasted_s / cycle)))
    return tokens / lasted_s


def time_steps(step: Step, count: int) -> tuple[float, int]:
    synchronize()
    started_s = time.perf_counter()
    tokens = sum(step() for _ in range(count))
    synchronize()
    return time.perf_counter() - started_s, tokens


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def free_memory() -> None:
    """Free the CUDA allocator's cache before another side allocates blocks of different sizes."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def relative_throughput(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return median, minimum and maximum of our rate divided by theirs, over the rounds."""
    ratios = [round(a / b, 4) for a, b in zip(ours, theirs, strict=True)]
    return {"median": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios)}
