"""Names and shapes of the tensors of safetensors files, read from their headers without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from neobert.errors import ProjectError
from neobert.printable import printable
from neobert.runfiles.lfs_pointer import is_lfs_pointer, lfs_pointer_error

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
CODE = "EXP004"
ANOTHER = "use another checkpoint, or save this checkpoint again"
FLOATS = ("F64", "F32", "F16", "BF16")
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 2**24
"""Maximum size of a header; the header of an encoder has a few hundred KB."""
PIECE_BYTES = 2**24

Shape = tuple[int, ...]


def tensor_shapes(path: Path) -> dict[str, Shape]:
    """Return tensor shapes by name, for a weights file or a folder with model.safetensors or its shards.

    Raises `ProjectError` EXP004 for a header that cannot be read.
    """
    shapes: dict[str, Shape] = {}
    for file in [path] if path.is_file() else weight_files(path):
        shapes |= _shapes_in_file(file)
    return shapes


def weight_files(folder: Path) -> list[Path]:
    """Return the path of model.safetensors, or the paths of the shards in its index.

    Raises `ProjectError` EXP004 if the folder has neither, or the index is invalid.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        hint = (
            "use a checkpoint folder with safetensors; pickled weights (.bin, .pt) are not read: of a model "
            "that you trust, the method save_pretrained of transformers writes safetensors"
        )
        raise ProjectError(CODE, f"no {WEIGHTS} in this folder", hint, place=str(folder))
    return _shard_files(folder / INDEX)


def _shard_files(index: Path) -> list[Path]:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        outside = sorted(name for name in names if Path(name).name != name or name in ("", ".."))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        message = f"invalid index of shards: {error!r}"
        raise ProjectError(CODE, message, ANOTHER, place=str(index)) from error
    if outside:
        message = f"the index names a file outside its folder: {printable(outside[0])}"
        raise ProjectError(CODE, message, ANOTHER, place=str(index))
    return [index.parent / name for name in sorted(names)]


def are_equal_tensors(folder: Path, one: str, other: str) -> bool:
    """Return whether two tensors have the same bytes. Raises `ProjectError` EXP004 if one is missing."""
    places = {
        name: (file, each) for file in weight_files(folder) for name, each in _read_header(file).items()
    }
    try:
        pieces = (_tensor_chunks(*places[name]) for name in (one, other))
        return all(left == right for left, right in zip_longest(*pieces))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable_error(folder, error) from error


def _tensor_chunks(file: Path, tensor: Any) -> Iterator[bytes]:
    """Yield the dtype of a tensor, then its data in chunks."""
    yield str(tensor["dtype"]).encode()
    begin, end = map(int, tensor["data_offsets"])
    with file.open("rb") as opened:
        header = LENGTH_BYTES + int.from_bytes(opened.read(LENGTH_BYTES), "little")
        opened.seek(header + begin)
        for start in range(begin, end, PIECE_BYTES):
            yield opened.read(min(PIECE_BYTES, end - start))


def _shapes_in_file(file: Path) -> dict[str, Shape]:
    try:
        header = _read_header(file)
        shapes = {name: _tensor_shape(each) for name, each in header.items()}
        types = {
            name: str(each["dtype"])
            for name, each in header.items()
            if _is_trained_weight(name, shapes[name])
        }
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable_error(file, error) from error
    for name, dtype in types.items():
        if dtype not in FLOATS:  # the values need their scales, which other tensors hold
            message = f"{printable(name)} has type {printable(dtype)}: quantized weights are not read"
            raise ProjectError(CODE, message, "save the model in fp32, bf16 or fp16", place=str(file))
    return shapes


def _is_trained_weight(name: str, shape: Shape) -> bool:
    """Return whether a tensor is a trained weight; `attention.bias` of older decoders is a mask."""
    return name.endswith(".weight") or (name.endswith(".bias") and len(shape) == 1)


def _read_header(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(LENGTH_BYTES), "little")
            if not 0 < size <= MAX_HEADER_BYTES:
                raise ValueError(f"the header has {size:,} bytes (limit {MAX_HEADER_BYTES:,})")
            content = json.loads(opened.read(size))
        tensors = {name: each for name, each in content.items() if name != "__metadata__"}
        end = LENGTH_BYTES + size + max((each["data_offsets"][1] for each in tensors.values()), default=0)
        if (found := file.stat().st_size) < end:
            raise ValueError(f"it has {found:,} of {end:,} bytes")
    except (OSError, ValueError, AttributeError, TypeError, LookupError, RecursionError) as error:
        raise _unreadable_error(file, error) from error
    return tensors


def _unreadable_error(file: Path, error: Exception) -> ProjectError:
    if file.is_file() and is_lfs_pointer(file):
        return lfs_pointer_error(file, CODE)
    message = f"the file is not a readable safetensors file: {printable(str(error))}"
    return ProjectError(CODE, message, "copy the file again, or use another checkpoint", place=str(file))


def _tensor_shape(tensor: Any) -> Shape:
    shape = tensor["shape"]
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("the shape of a tensor is not a list of sizes")
    return tuple(shape)
