"""Tables that every layer of a microbatch reads.

Which rows an attention tile covers, and each row's rotary angles; and the width of a Triton tile.

T packed tokens, S segments, E head size.
"""

import torch
from torch import Tensor


def power_of_two(size: int) -> int:
    """Return the width that Triton takes a row of this size in: the power of two that holds it."""
    return 1 << (size - 1).bit_length()


def attention_tiles(cu_seqlens: Tensor, total: int, block: int) -> Tensor:
    """Cut segments into tiles of at most `block` rows, longest segments first.

    cu_seqlens: [S + 1] integers; trailing entries may repeat. Rows past the last entry count as one more
    segment, so that every row of the `total` rows is covered. Returns int32 [3, total // block + S + 1]:
    first row of the tile, first row of its segment, end of its segment; unused tiles have first row = end.
    The shape depends on nothing but the arguments' shapes.
    """
    # All on the device and in shapes that depend on shapes alone: no synchronization, and one compiled graph
    # for every packing. Unused slots become empty tiles, which end at once.
    begins = cu_seqlens.to(torch.int64)
    ends = torch.cat([begins[1:], begins.new_full((1,), total)])
    counts = (ends - begins + block - 1) // block
    last = counts.cumsum(0)
    num_tiles = total // block + cu_seqlens.numel()
    index = torch.arange(num_tiles, device=cu_seqlens.device)
    segment = torch.searchsorted(last, index, right=True).clamp_(max=counts.numel() - 1)
    begin, end = begins[segment], ends[segment]
    first = begin + (index - (last - counts)[segment]) * block
    used = index < last[-1]
    # Longest segments first: they take longest, and programs start in this order.
    order = torch.where(used, end - begin, -1).argsort(descending=True, stable=True)
    return torch.stack([torch.where(used, first, end), begin, end])[:, order].to(torch.int32).contiguous()


def rotary_table(
    position_ids: Tensor, head_dim: int, theta: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Tabulate cosines and sines by row, (cos, sin) pairs for queries, keys and values side by side.

    position_ids: [T]. Returns [T, 3 * head_dim]: twice the angles theta ** (-2k / head_dim) * position, then
    (1, 0) pairs, which leave the values as they are.
    """
    exponent = torch.arange(0, head_dim, 2, device=position_ids.device, dtype=torch.float32) / head_dim
    angle = position_ids.to(torch.float32)[:, None] * theta**-exponent
    turn = torch.stack([angle.cos(), angle.sin()], -1).flatten(1)
    # Values pass through the same epilogue as queries and keys; cos 1 and sin 0 leave them as they are.
    still = torch.stack([torch.ones_like(angle), torch.zeros_like(angle)], -1).flatten(1)
    return torch.cat([turn, turn, still], 1).to(dtype)
