"""Sharded optimizer state through torch's distributed checkpointing: each rank writes its own shard.

Any number of ranks can read it, sharded or not. torch writes its metadata as a pickle, and unpickling can run
arbitrary code. Here the expected classes are replaced by plain records, any other name is rejected, and the
content is checked before torch's own classes are built.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.tensor import DTensor

from neobert.export import lazy_weights
from neobert.parallel.sharding import local_shard
from neobert.printable import printable
from neobert.runfiles.checkpoint.refusal import unusable_checkpoint_error

FILE_NAME = ".metadata"
RECORDS = {
    *((cls.__module__, cls.__name__) for cls in (Metadata, TensorStorageMetadata, ChunkStorageMetadata)),
    *((cls.__module__, cls.__name__) for cls in (TensorProperties, MetadataIndex, StorageMeta, _StorageInfo)),
}
# Not used, or equal in every file that this project writes.
IGNORED = {
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # Python 3.13
    ("builtins", "getattr"),  # member of an enum, in Python 3.11.0 to 3.11.3; never the real function
}
DTYPES = {
    str(each).removeprefix("torch."): each for each in vars(torch).values() if isinstance(each, torch.dtype)
}
Kind = TypeVar("Kind")


def wrap_shard_copy(copy: Tensor, original: Tensor) -> Tensor:
    """Wrap a copy of this rank's shard for `write_shards`, with the placement of the original."""
    if copy.numel():
        # torch's writer clones each tensor that is part of a larger memory, and keeps all clones to the end.
        values = copy.flatten().view(torch.uint8).numpy()
        copy = torch.frombuffer(values, dtype=copy.dtype).view(copy.shape)
    return DTensor(copy, original._spec, requires_grad=False) if isinstance(original, DTensor) else copy


class ShardWriter(dcp.FileSystemWriter):
    """Writer of a rank's shards, in several files that are hashed at the same time (`manifest.seal`).

    torch would write them in as many threads, and drops the errors of all but one, such as a full disk.
    """

    def _write_data(self, *arguments: Any, **named: Any) -> Any:
        self.thread_count = 1  # one after the other, in this thread
        return super()._write_data(*arguments, **named)


def write_shards(folder: Path, tensors: Mapping[str, Tensor], group: Any) -> None:
    """Write this rank's shards. All ranks of the group call it; if one fails, all raise `OSError`."""
    num_files = (
        ceil(sum(local_shard(each).nbytes for each in tensors.values()) / lazy_weights.FILE_BYTES) or 1
    )
    # Reading ahead is for tensors on a GPU: torch would wait for training's stream before each of these.
    writer = ShardWriter(folder, sync_files=True, thread_count=num_files, per_thread_copy_ahead=0)
    try:
        dcp.save(dict(tensors), storage_writer=writer, process_group=group, no_dist=group is None)
    except CheckpointException as error:
        reasons = "; ".join(f"rank {rank}: {cause}" for rank, (cause, _) in sorted(error.failures.items()))
        raise OSError(reasons) from error


class ShardReader(dcp.FileSystemReader):
    """Reader of sharded checkpoints that does not unpickle metadata, unlike torch's `FileSystemReader`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        try:
            self._metadata = read_shard_metadata(folder)
        except (OSError, ValueError) as error:
            raise unusable_checkpoint_error(
                folder, f"{FILE_NAME} cannot be used: {printable(str(error))}"
            ) from error

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the metadata, read and checked without unpickling."""
        return self._metadata

    def shapes(self) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Return the full shape and dtype of each tensor by name."""
        saved = self._metadata.state_dict_metadata
        return {
            name: (each.size, each.properties.dtype)
            for name, each in saved.items()
            if isinstance(each, TensorStorageMetadata)
        }


def read_shards(reader: ShardReader, targets: Mapping[str, Tensor]) -> None:
    """Load tensors by name into `targets`, which may be sharded. Each rank reads independently.

    Raises `ProjectError` CKP007 if a shard cannot be read.
    """
    try:
        dcp.load(dict(targets), storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        causes = "; ".join(f"{type(cause).__name__}: {cause}" for cause, _ in error.failures.values())
        reason = f"the optimizer's shards cannot be read: {printable(causes)}"
        raise unusable_checkpoint_error(Path(reader.path), reason) from error


class _PickledRecord:
    """Stand-in for a pickled class that only stores the object's state."""

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # A pickle may set attributes on the class it gets, so each call returns a new one.
        if (module, name) in RECORDS:
            return type(name, (_PickledRecord,), {})
        if (module, name) in IGNORED:
            return lambda *_: None
        if (module, name) == ("torch", "Size"):
            return tuple
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a checkpoint's metadata")


def read_shard_metadata(folder: Path) -> Metadata:
    """Read the metadata of a sharded checkpoint folder.

    Raises `OSError`, and `ValueError` if it describes anything but tensors in files of this folder.
    """
    content = (folder / FILE_NAME).read_bytes()
    try:
        state = _record_state(_Unpickler(io.BytesIO(content)).load(), "Metadata")
        return Metadata(
            state_dict_metadata={
                _require_type(str, name): _parse_tensor(each)
                for name, each in state["state_dict_metadata"].items()
            },
            storage_data=dict(_parse_location(*item) for item in state["storage_data"].items()),
            storage_meta=StorageMeta(),
        )
    except ValueError:
        raise
    except Exception as error:  # a pickle with other content may fail in any way
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _parse_tensor(record: Any) -> TensorStorageMetadata:
    state = _record_state(record, "TensorStorageMetadata")
    dtype = _require_type(torch.dtype, _record_state(state["properties"], "TensorProperties")[0])
    chunks = [_record_state(each, "ChunkStorageMetadata") for each in _require_type(list, state["chunks"])]
    return TensorStorageMetadata(
        TensorProperties(dtype=dtype),
        _parse_size(state["size"]),
        [ChunkStorageMetadata(_parse_size(each["offsets"]), _parse_size(each["sizes"])) for each in chunks],
    )


def _parse_location(index: Any, info: Any) -> tuple[MetadataIndex, _StorageInfo]:
    """Convert the index and storage location (file, offset, length) of a tensor chunk.

    Raises `ValueError` for a file outside the folder, or an encoded one.
    """
    key, value = _record_state(index, "MetadataIndex"), _record_state(info, "_StorageInfo")
    file_name = _require_type(str, value["relative_path"])
    is_here = Path(file_name).name == file_name and file_name not in ("", "..")
    if not is_here or value.get("transform_descriptors"):
        raise ValueError(f"tensor file {file_name} is outside the folder or encoded")
    offset, number = key.get("offset"), key.get("index")
    return (
        MetadataIndex(
            _require_type(str, key["fqn"]),
            None if offset is None else _parse_size(offset),
            None if number is None else _parse_count(number),
        ),
        _StorageInfo(file_name, _parse_count(value["offset"]), _parse_count(value["length"])),
    )


def _record_state(record: Any, name: str) -> Any:
    if not isinstance(record, _PickledRecord) or type(record).__name__ != name:
        raise ValueError(f"{name} expected, got {type(record).__name__}")
    return record.state


def _parse_size(value: Any) -> torch.Size:
    return torch.Size(map(_parse_count, _require_type(tuple, value)))


def _parse_count(value: Any) -> int:
    count: int = _require_type(int, value)
    if count < 0:
        raise ValueError(f"size or offset {count} is negative")
    return count


def _require_type(kind: type[Kind], value: Any) -> Kind:
    if type(value) is not kind:
        raise ValueError(f"{kind.__name__} expected, got {type(value).__name__}")
    return value
