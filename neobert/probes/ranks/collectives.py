"""Collectives with known values, and how fast the largest of them is.

Rank r contributes r + 1 + i mod 4 at place i: whole numbers whose sums are exact in every dtype here for
up to sixteen ranks.

    N ranks
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.int64)
SIZES = (1, 1021, 1 << 20)
LARGEST = {"cuda": 1 << 26, "cpu": 1 << 20}
WARM_UPS, REPEATS = 2, 5
PERIOD = 4


def contribution(rank: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return what a rank brings, [size]."""
    return (torch.arange(size, device=device) % PERIOD + rank + 1).to(dtype)


def expected_sum(world_size: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return N (N + 1) / 2 + N (i mod 4), [size]."""
    steps = torch.arange(size, device=device) % PERIOD
    return (world_size * (world_size + 1) // 2 + world_size * steps).to(dtype)


def check_all(rank: int, world_size: int, device: torch.device) -> list[dict[str, Any]]:
    """Run every case; say for each whether this rank's result was right and whose parts arrived wrong."""
    return [result for case in _cases(device) for result in check(*case, rank, world_size, device)]


def _cases(device: torch.device) -> Iterator[tuple[torch.dtype, int]]:
    for dtype in DTYPES:
        yield from ((dtype, size) for size in SIZES)
    if device.type == "cuda":
        yield torch.float32, LARGEST["cuda"]


def check(
    dtype: torch.dtype, size: int, rank: int, world_size: int, device: torch.device
) -> Iterator[dict[str, Any]]:
    """Run an all-reduce and an all-gather of [size]."""
    case = {"dtype": str(dtype).removeprefix("torch."), "num_elements": size}
    own = contribution(rank, size, dtype, device)
    total = own.clone()
    dist.all_reduce(total)
    is_right = torch.equal(total, expected_sum(world_size, size, dtype, device))
    yield case | {"operation": "all_reduce", "is_right": is_right, "wrong_from": []}
    del total
    wrong = wrong_parts(own, world_size)
    yield case | {"operation": "all_gather", "is_right": not wrong, "wrong_from": wrong}


def wrong_parts(own: Tensor, world_size: int) -> list[int]:
    """Collect every rank's part and return the ranks whose part is not what they have to bring."""
    parts = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(parts, own)
    return [
        rank
        for rank, part in enumerate(parts)
        if not torch.equal(part, contribution(rank, len(own), own.dtype, own.device))
    ]


def bus_bytes_per_s(world_size: int, device: torch.device) -> float:
    """Time the largest all-reduce; return the bytes a second that cross each link, 2 (N - 1) / N of it."""
    tensor = torch.zeros(LARGEST[device.type], device=device)
    times_s = [_timed(tensor) for _ in range(WARM_UPS + REPEATS)][WARM_UPS:]
    num_bytes = tensor.numel() * tensor.element_size()
    return 2 * (world_size - 1) / world_size * num_bytes / min(times_s)


def _timed(tensor: Tensor) -> float:
    _wait(tensor.device)
    started = time.perf_counter()
    dist.all_reduce(tensor)
    _wait(tensor.device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def has_peer_access(world_size: int) -> bool | None:
    """Return whether every device of this node reads the memory of every other; None without CUDA."""
    if not torch.cuda.is_available():
        return None
    pairs = ((one, other) for one in range(world_size) for other in range(world_size) if one != other)
    return all(torch.cuda.can_device_access_peer(one, other) for one, other in pairs)
