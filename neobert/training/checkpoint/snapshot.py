"""A copy of a run's tensors in host memory, which a thread writes during training.

On a GPU the copy goes into pinned memory on a stream of its own. It overlaps the next forward and backward;
only the optimizer, which would overwrite what is being copied, waits for it, and on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

SLAB_BYTES = 256 * 2**20  # pinned allocations are rounded up to a power of two
ALIGNMENT_BYTES = 64

Layout = dict[str, tuple[torch.Size, torch.dtype]]


class Snapshot:
    """Host memory for one copy at a time, allocated once and reused."""

    def __init__(self, device: torch.device, optimizer: Optimizer) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copied: Any = None
        self._layout: Layout = {}
        self._memory: dict[str, Tensor] = {}
        if self._stream is not None:
            optimizer.register_step_pre_hook(self._hold_update)

    def reserve(self, layout: Layout) -> dict[str, Tensor]:
        """Allocate memory for such tensors, before the first save: pinning gibibytes takes seconds."""
        if layout != self._layout:
            self._memory = {}  # free the old memory first: both may not fit
            self._memory = dict(_views(layout, is_pinned=self._stream is not None))
            self._layout = layout
        return self._memory

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Start to copy, and return the destination, which may be read after `wait`.

        The optimizer may write to the tensors as soon as this returns; nothing else may.
        """
        memory = self.reserve({name: (each.shape, each.dtype) for name, each in tensors.items()})
        if self._stream is None:
            for name, tensor in tensors.items():
                memory[name].copy_(tensor)
            return memory
        # The copy must see this step's update, which may still be in the queue of the current stream.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for name, tensor in tensors.items():
                memory[name].copy_(tensor, non_blocking=True)
                # A gathered weight is freed before it is copied: the allocator must not reuse it until then.
                tensor.record_stream(self._stream)
            self._copied = self._stream.record_event()
        return memory

    def wait(self) -> None:
        """Wait, on the host, until the copy is there."""
        if self._copied is not None:
            self._copied.synchronize()

    def _hold_update(self, *_: Any) -> None:
        # On the device: the host queues the optimizer's step at once, and the GPU runs it after the copy.
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)


def _views(layout: Layout, *, is_pinned: bool) -> Iterator[tuple[str, Tensor]]:
    """Lay tensors out in slabs, one after the other; what is larger than a slab has one of its own."""
    slab, used = torch.empty(0, dtype=torch.uint8), 0
    for name, (shape, dtype) in layout.items():
        num_bytes = prod(shape) * dtype.itemsize
        if used + num_bytes > slab.numel():
            size = max(SLAB_BYTES if is_pinned else num_bytes, num_bytes)
            slab, used = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned), 0
        yield name, slab[used : used + num_bytes].view(dtype).view(shape)
        used += -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
