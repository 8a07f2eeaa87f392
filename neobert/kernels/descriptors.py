"""Tensor descriptors, with which Hopper and data-centre Blackwell GPUs copy blocks of matrices (TMA)."""

from typing import Any

import torch
from torch import Tensor


def supports_block_copies(x: Tensor) -> bool:
    """Return whether the device of x has TMA, and shared memory for the blocks of one program.

    Older GPUs load them through registers, one after another, which is slower than programs with pointers.
    GPUs of capability 12 have 99 KiB of shared memory for a program, and the largest takes 192. True on a
    CPU, where Triton's interpreter runs the programs.
    """
    return not x.is_cuda or torch.cuda.get_device_capability(x.device)[0] in (9, 10)


def count_multiprocessors(x: Tensor) -> int:
    """Return the number of multiprocessors of the device of x; 1 for a CPU."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1


def block_descriptor(tensor: Tensor, *block: int) -> Any:
    """Return the descriptor of a tensor for blocks of this shape; elements beyond its end are zeros."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(tensor, list(block))
