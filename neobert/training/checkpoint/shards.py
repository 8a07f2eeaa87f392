"""Sharded optimizer state through torch's distributed checkpointing: each rank writes its own shard.

It can be read by any number of ranks, sharded or whole: torch looks up which files hold a shard.
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
    """Wrap a copy of this rank's shard as a DTensor with the placement of the original."""
    if not isinstance(original, DTensor):
        return copy
    return DTensor(copy, original._spec, requires_grad=False)


def write_shards(folder: Path, tensors: Mapping[str, Tensor], group: Any) -> None:
    """Write this rank's shards. All ranks of the group call it; if one fails, all raise `OSError`."""
    writer = dcp.FileSystemWriter(folder, sync_files=True)
    try:
        dcp.save(dict(tensors), storage_writer=writer, process_group=group, no_dist=group is None)
    except CheckpointException as error:
        reasons = "; ".join(f"rank {rank}: {cause}" for rank, (cause, _) in sorted(error.failures.items()))
        raise OSError(reasons) from error


class ShardReader(dcp.FileSystemReader):
    """A reader with safe metadata: torch's own unpickles the file, which runs code that it may contain."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        try:
            self._metadata = read_shard_metadata(folder)
        except (OSError, ValueError) as error:
            raise broken(folder, f"{FILE_NAME} cannot be used: {printable(str(error))}") from error

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the checked metadata."""
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
    """Fill tensors, whole or sharded, by name. Each rank reads independently.

    Raises `ProjectError` CKP007 where a shard does not hold what the metadata says.
    """
    try:
        dcp.load(dict(targets), storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        causes = "; ".join(f"{type(cause).__name__}: {cause}" for cause, _ in error.failures.values())
        reason = f"the optimizer's shards cannot be read: {printable(causes)}"
        raise broken(Path(reader.path), reason) from error
