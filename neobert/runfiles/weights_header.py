"""Names and shapes of the tensors of safetensors files, read from their headers without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from neobert.errors import ProjectError
from neobert.printable import printable
from neobert.runfiles.model_folder import read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
CODE = "EXP004"
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 2**24
"""An encoder's header has some hundred kilobytes."""

Shape = tuple[int, ...]


def tensor_shapes(path: Path) -> dict[str, Shape]:
    """Return the shapes of a weights file, or of a folder with model.safetensors or its shards, by name.

    Raises `ProjectError` EXP004 for a header that cannot be read.
    """
    shapes: dict[str, Shape] = {}
    for file in [path] if path.is_file() else _files(path):
        shapes |= _shapes_in(file)
    return shapes


def _files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        return [folder / WEIGHTS]
    listed = read_json(folder / INDEX, code=CODE).get("weight_map")
    names = set(map(str, listed.values())) if isinstance(listed, dict) else {""}
    if any(Path(name).name != name or name in ("", "..") for name in names):
        raise ProjectError(CODE, "is not an index of weights in this folder", place=str(folder / INDEX))
    return [folder / name for name in sorted(names)]


def _shapes_in(file: Path) -> dict[str, Shape]:
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(LENGTH_BYTES), "little")
            if not 0 < size <= MAX_HEADER_BYTES:
                raise ValueError(f"a header of {size:,} bytes")
            content = json.loads(opened.read(size))
        return {name: _shape(each) for name, each in content.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        message = f"is not a readable safetensors file: {printable(str(error))}"
        raise ProjectError(CODE, message, place=str(file)) from error


def _shape(tensor: Any) -> Shape:
    shape = tensor["shape"]
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("a shape that is not a list of sizes")
    return tuple(shape)
