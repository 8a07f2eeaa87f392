"""State that lies in parts over the ranks, through torch's distributed checkpointing: each writes its own.

It is read under any number of ranks, in parts or whole: a part finds what it needs wherever it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor


def stage(copy: Tensor, original: Tensor) -> Tensor:
    """Have a copy of this rank's part stand for the whole, spread as the original is."""
    if not isinstance(original, DTensor):
        return copy
    return DTensor(copy, original._spec, requires_grad=False)


def write_shards(folder: Path, tensors: Mapping[str, Tensor], group: Any) -> None:
    """Write this rank's parts. All ranks of the group call it, and all raise `OSError` where one cannot."""
    writer = dcp.FileSystemWriter(folder, sync_files=True)
    try:
        dcp.save(dict(tensors), storage_writer=writer, process_group=group, no_dist=group is None)
    except CheckpointException as error:
        reasons = "; ".join(f"rank {rank}: {cause}" for rank, (cause, _) in sorted(error.failures.items()))
        raise OSError(reasons) from error


def shapes_in(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return the shape and type of each whole tensor."""
    saved = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    return {name: (each.size, each.properties.dtype) for name, each in saved.items()}


def read_shards(folder: Path, targets: Mapping[str, Tensor]) -> None:
    """Fill tensors, whole or in parts, by name. Each rank reads by itself."""
    dcp.load(dict(targets), storage_reader=dcp.FileSystemReader(folder), no_dist=True)
