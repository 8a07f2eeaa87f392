"""Monitored barrier, correctness of collectives with known values, and all-reduce bandwidth.

In the barrier, each rank sets a key in a store; ranks without a key at the timeout are reported as absent. In
the collectives, rank r contributes r + 1 + i mod 4 at index i: integers whose sums are exact in every dtype
tested, for up to 16 ranks.

Shapes: N is the world size.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import DistStoreError, Store

DRILL_TIMEOUT_S, DRILL_LIMIT_S = 2.0, 30.0


@dataclass(frozen=True, slots=True)
class MonitoredBarrier:
    """Barrier that returns the ranks that did not reach it, like `torch.distributed.monitored_barrier`."""

    store: Store
    rank: int
    world_size: int

    def wait(self, name: str, timeout_s: float) -> tuple[int, ...]:
        """Enter the barrier `name`; return the ranks that have not entered it after `timeout_s` seconds."""
        self.store.set(f"{name}/{self.rank}", "here")
        return self.absent_ranks(name, timeout_s)

    def absent_ranks(self, name: str, timeout_s: float) -> tuple[int, ...]:
        """Return the ranks that have not entered barrier `name`; `timeout_s` is the limit for all."""
        deadline = time.monotonic() + timeout_s
        return tuple(rank for rank in range(self.world_size) if not self._has_entered(name, rank, deadline))

    def _has_entered(self, name: str, rank: int, deadline: float) -> bool:
        left_s = max(0.05, deadline - time.monotonic())
        try:
            self.store.wait([f"{name}/{rank}"], timedelta(seconds=left_s))
        except DistStoreError:
            return False
        return True

    def self_test(self) -> tuple[tuple[int, ...], float]:
        """Test the barrier: the last rank does not enter it, and the others must report that rank as absent.

        Returns the absent ranks and the seconds until they were reported. The last rank returns `((), 0.0)`
        after the others are done.
        """
        last = self.world_size - 1
        if self.rank == last:
            self.store.wait([f"drilled/{rank}" for rank in range(last)], timedelta(seconds=DRILL_LIMIT_S))
            return (), 0.0
        started = time.monotonic()
        missed = self.wait("drill", DRILL_TIMEOUT_S)
        self.store.set(f"drilled/{self.rank}", "done")
        return missed, time.monotonic() - started


DTYPES = (torch.float32, torch.bfloat16, torch.int64)
SIZES = (1, 1021, 1 << 20)
LARGEST = {"cuda": 1 << 26, "cpu": 1 << 20}
WARM_UPS, REPEATS = 2, 5
PERIOD = 4


def contribution(rank: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the values [size] that a rank contributes to a collective: rank + 1 + i mod 4."""
    return (torch.arange(size, device=device) % PERIOD + rank + 1).to(dtype)


def expected_sum(world_size: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the correct result [size] of the all-reduce: N * (N + 1) / 2 + N * (i mod 4)."""
    steps = torch.arange(size, device=device) % PERIOD
    return (world_size * (world_size + 1) // 2 + world_size * steps).to(dtype)


def check_all_collectives(rank: int, world_size: int, device: torch.device) -> list[dict[str, Any]]:
    """Run both collectives for all dtypes and sizes; return the results of `check_collectives`."""
    return [
        result
        for case in _dtypes_and_sizes(device)
        for result in check_collectives(*case, rank, world_size, device)
    ]


def _dtypes_and_sizes(device: torch.device) -> Iterator[tuple[torch.dtype, int]]:
    for dtype in DTYPES:
        yield from ((dtype, size) for size in SIZES)
    if device.type == "cuda":
        yield torch.float32, LARGEST["cuda"]


def check_collectives(
    dtype: torch.dtype, size: int, rank: int, world_size: int, device: torch.device
) -> Iterator[dict[str, Any]]:
    """Run an all-reduce and an all-gather of [size] values.

    Yields for each: `is_right`, the correctness of the result on this rank, and `wrong_from`, the ranks whose
    part of the all-gather is wrong.
    """
    case = {"dtype": str(dtype).removeprefix("torch."), "num_elements": size}
    own = contribution(rank, size, dtype, device)
    total = own.clone()
    dist.all_reduce(total)
    is_right = torch.equal(total, expected_sum(world_size, size, dtype, device))
    yield case | {"operation": "all_reduce", "is_right": is_right, "wrong_from": []}
    del total
    wrong = ranks_with_wrong_parts(own, world_size)
    yield case | {"operation": "all_gather", "is_right": not wrong, "wrong_from": wrong}


def ranks_with_wrong_parts(own: Tensor, world_size: int) -> list[int]:
    """All-gather `own`; return the ranks from which wrong values arrived."""
    parts = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(parts, own)
    return [
        rank
        for rank, part in enumerate(parts)
        if not torch.equal(part, contribution(rank, len(own), own.dtype, own.device))
    ]


def bus_bytes_per_s(world_size: int, device: torch.device) -> float:
    """Return the bus bandwidth of the largest all-reduce in bytes/s: 2 * (N - 1) / N * bytes / seconds."""
    tensor = torch.zeros(LARGEST[device.type], device=device)
    times_s = [_time_all_reduce(tensor) for _ in range(WARM_UPS + REPEATS)][WARM_UPS:]
    num_bytes = tensor.numel() * tensor.element_size()
    return 2 * (world_size - 1) / world_size * num_bytes / min(times_s)


def _time_all_reduce(tensor: Tensor) -> float:
    _synchronize(tensor.device)
    started = time.perf_counter()
    dist.all_reduce(tensor)
    _synchronize(tensor.device)
    return time.perf_counter() - started


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def has_peer_access(world_size: int) -> bool | None:
    """Return whether every pair of this node's GPUs has peer access; None without CUDA."""
    if not torch.cuda.is_available():
        return None
    pairs = ((one, other) for one in range(world_size) for other in range(world_size) if one != other)
    return all(torch.cuda.can_device_access_peer(one, other) for one, other in pairs)
