"""Parameters that are spread over ranks (`DTensor`), and the whole of them.

What works element by element takes this rank's part; what needs the matrix gathers it. A plain tensor is its
own part and its own whole.
"""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate


def own_part(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather_like(part: Tensor, spread: Tensor) -> Tensor:
    """Return the whole of what each rank holds a part of, laid out as `spread` is. All ranks call it."""
    if not isinstance(spread, DTensor):
        return part
    return DTensor.from_local(
        part,
        spread.device_mesh,
        spread.placements,
        run_check=False,
        shape=spread.shape,
        stride=spread.stride(),
    ).full_tensor()


def part_like(whole: Tensor, spread: Tensor) -> Tensor:
    """Return this rank's part of what every rank holds whole; nothing is sent."""
    if not isinstance(spread, DTensor):
        return whole
    mesh = spread.device_mesh
    replicated = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(placements=spread.placements).to_local()
