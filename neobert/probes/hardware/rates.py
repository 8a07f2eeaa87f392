"""Correctness and throughput of every visible GPU: matrix products, memory, host-to-device copies.

`python -m neobert.probes.hardware.rates` prints the measurements as JSON.

Correctness is tested with a product of sparse matrices of -1, 0 and 1. Every partial sum is a small integer,
exact in bf16, so a working device gives the same bits in any order of addition.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from neobert.errors import EXIT_OK
from neobert.train import exit_process

ANSWER_SIZE, ANSWER_REPEATS = 4096, 24
NON_ZERO_SHARE = 1 / 16
LARGEST_EXACT = 256
GEMM_SIZE = 8192
COPY_BYTES, HOST_BYTES = 2**31, 2**28
WARM_UP, WINDOWS, CALLS, HOST_CALLS = 3, 9, 8, 2
BURSTS, BURST_WINDOWS, BURST_CALLS, REST_S = 4, 5, 4, 0.25
"""Numbers of bursts, of timed windows per burst and of calls per window, and seconds of rest before a burst.
A burst takes about 10 ms: the clocks rise, but the power limit does not apply yet."""


def measure_devices() -> list[dict[str, Any]]:
    """Measure correctness and throughput of each visible GPU, one GPU at a time."""
    with ThreadPoolExecutor(1) as host:  # it computes while the first GPU starts and rests
        known = host.submit(known_product)
        return [_measure_device(index, known) for index in range(torch.cuda.device_count())]


def known_product(size: int = ANSWER_SIZE) -> tuple[Tensor, Tensor, Tensor]:
    """Return two bf16 matrices [size, size] and their exact product, on the host."""
    generator = torch.Generator().manual_seed(0)
    left, right = (_sparse_signs(size, generator) for _ in range(2))
    product = left @ right  # fp32 sums of integers below 2**24 are exact
    assert product.abs().max() < LARGEST_EXACT
    return left.bfloat16(), right.bfloat16(), product.bfloat16()


def _sparse_signs(size: int, generator: torch.Generator) -> Tensor:
    draws = torch.rand(size, size, generator=generator)
    return (draws < NON_ZERO_SHARE / 2).float() - (draws > 1 - NON_ZERO_SHARE / 2).float()


def _measure_device(index: int, known: Future[tuple[Tensor, Tensor, Tensor]]) -> dict[str, Any]:
    with torch.cuda.device(index):
        product = _matrix_product()
        burst_s = _burst_s(product)  # first, while the card is cool
        left, right, answer = (matrix.cuda() for matrix in known.result())
        return {
            "index": index,
            "name": torch.cuda.get_device_name(index),
            "answers": ANSWER_REPEATS,
            "wrong_answers": count_wrong(left, right, answer),
            "burst_flops": 2 * GEMM_SIZE**3 / burst_s,
            "gemm_flops": 2 * GEMM_SIZE**3 / _median_s(product),
            "copy_bytes_per_s": 2 * COPY_BYTES / _copy_s(),
            "host_bytes_per_s": HOST_BYTES / _host_copy_s(),
        }


def count_wrong(left: Tensor, right: Tensor, answer: Tensor) -> int:
    """Repeat a matrix product `ANSWER_REPEATS` times; return how many results differ from `answer`."""
    return sum(not torch.equal(left @ right, answer) for _ in range(ANSWER_REPEATS))


def _matrix_product() -> Callable[[], object]:
    left, right = (torch.randn(GEMM_SIZE, GEMM_SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def _burst_s(work: Callable[[], object]) -> float:
    """Return the seconds per call in the fastest of several short bursts, each after an idle period."""
    times = []
    for _ in range(BURSTS):
        torch.cuda.synchronize()
        time.sleep(REST_S)
        times += [_mean_seconds(work, BURST_CALLS) for _ in range(BURST_WINDOWS)]
    return min(times)


def _copy_s() -> float:
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return _median_s(lambda: target.copy_(source))


def _host_copy_s() -> float:
    source = torch.empty(HOST_BYTES, dtype=torch.uint8).pin_memory()
    target = torch.empty(HOST_BYTES, dtype=torch.uint8, device="cuda")
    return _median_s(lambda: target.copy_(source, non_blocking=True), HOST_CALLS)


def _median_s(work: Callable[[], object], calls: int = CALLS) -> float:
    """Return the median seconds per call, measured with CUDA events after a warm-up."""
    times = [_mean_seconds(work, calls) for _ in range(WARM_UP + WINDOWS)][WARM_UP:]
    return sorted(times)[WINDOWS // 2]


def _mean_seconds(work: Callable[[], object], calls: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000 / calls


if __name__ == "__main__":
    print(json.dumps({"devices": measure_devices()}, allow_nan=False))
    exit_process(EXIT_OK)
