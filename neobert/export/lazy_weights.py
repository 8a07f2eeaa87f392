"""Weights that are computed or read one by one, for models larger than host memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from neobert.runfiles.weights_header import INDEX, WEIGHTS

FILE_BYTES = 2 * 10**9
"""Maximum size of a file of lazy weights, of a rank's rows, or of its optimizer shards. Its weights are in
memory while it is written, and one core hashes it."""
METADATA = {"format": "pt"}


class LazyWeights(Mapping[str, Tensor]):
    """Weights by name. Each is computed at every access.

    Attributes:
        sizes: bytes of each weight, known before it is computed.
    """

    def __init__(self, compute: Mapping[str, Callable[[], Tensor]], sizes: Mapping[str, int]) -> None:
        self._compute = compute
        self.sizes = {name: sizes[name] for name in compute}

    def __getitem__(self, name: str) -> Tensor:
        return self._compute[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._compute)

    def __len__(self) -> int:
        return len(self._compute)


def write_lazily(weights: LazyWeights, folder: Path) -> None:
    """Write weights to a folder, one file in memory at a time.

    Writes model.safetensors, or several files and their index if it would exceed `FILE_BYTES`.
    """
    written: list[list[str]] = []
    total_size = 0
    for number, names in enumerate(file_groups(weights.sizes)):
        total_size += _write_file({name: weights[name] for name in names}, _partial_path(folder, number))
        written.append(names)
    if len(written) == 1:
        _partial_path(folder, 0).rename(folder / WEIGHTS)
        return
    files: dict[str, str] = {}
    for number, names in enumerate(written):
        file = f"model-{number + 1:05}-of-{len(written):05}.safetensors"
        _partial_path(folder, number).rename(folder / file)
        files |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(files.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def file_groups(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield weight names in groups of at most `FILE_BYTES`, or of a single larger weight.

    `sizes`: bytes of each weight.
    """
    group: list[str] = []
    filled = 0
    for name, size in sizes.items():
        if group and filled + size > FILE_BYTES:
            yield group
            group, filled = [], 0
        group.append(name)
        filled += size
    if group:
        yield group


def _write_file(group: Mapping[str, Tensor], path: Path) -> int:
    save_file({name: each.contiguous() for name, each in group.items()}, path, METADATA)
    return sum(each.nbytes for each in group.values())


def _partial_path(folder: Path, number: int) -> Path:
    return folder / f"model-{number + 1:05}.safetensors"
