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
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from neobert.printable import printable
from neobert.runfiles.checkpoint.refusal import broken
from neobert.training.checkpoint.shard_metadata import FILE_NAME, read_shard_metadata


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


class ShardReader(dcp.FileSystemReader):
    """A reader that takes metadata for data: torch's own runs what an altered file says."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        try:
            self._metadata = read_shard_metadata(folder)
        except (OSError, ValueError) as error:
            raise broken(folder, f"{FILE_NAME} cannot be used: {printable(str(error))}") from error

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the metadata that was checked."""
        return self._metadata

    def shapes(self) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Return the shape and type of each whole tensor."""
        saved = self._metadata.state_dict_metadata
        return {
            name: (each.size, each.properties.dtype)
            for name, each in saved.items()
            if isinstance(each, TensorStorageMetadata)
        }


def read_shards(reader: ShardReader, targets: Mapping[str, Tensor]) -> None:
    """Fill tensors, whole or in parts, by name. Each rank reads by itself.

    Raises `ProjectError` CKP007 where a shard does not hold what the metadata says.
    """
    try:
        dcp.load(dict(targets), storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        causes = "; ".join(f"{type(cause).__name__}: {cause}" for cause, _ in error.failures.values())
        reason = f"the optimizer's shards cannot be read: {printable(causes)}"
        raise broken(Path(reader.path), reason) from error
