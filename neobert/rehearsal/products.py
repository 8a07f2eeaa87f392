"""The precision that matrix products really take their inputs in, as the profiler sees them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from torch import nn
from torch.profiler import ProfilerActivity, profile

# The place of the two factors among the arguments.
FACTORS = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::addmm": 1,
    "aten::baddbmm": 1,
    "aten::_addmm_activation": 1,
    "aten::_scaled_mm": 0,
}
NAMES = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
}


@contextmanager
def recording_products() -> Iterator[dict[str, float]]:
    """Collect the FLOPs of the block's matrix products by the precision of their inputs.

    Products inside a kernel of one's own are not seen: what torch computes around them is.
    """
    flops: dict[str, float] = defaultdict(float)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as profiler:
        yield flops
    assert profiler.profiler is not None
    for event in profiler.profiler.kineto_results.events():
        found = _product(event)
        if found:
            flops[found[0]] += found[1]


def _product(event: Any) -> tuple[str, float] | None:
    place = FACTORS.get(event.name())
    if place is None:
        return None
    left, right = event.shapes()[place : place + 2]
    kinds = [NAMES.get(kind, kind) for kind in event.dtypes()[place : place + 2]]
    if not left or not right or not kinds:
        return None
    return kinds[0], 2.0 * prod(left) * right[-1]


def parameter_types(model: nn.Module) -> dict[str, int]:
    """Count the model's parameters by their precision."""
    counts: Counter[str] = Counter()
    for parameter in model.parameters():
        counts[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return dict(counts)
