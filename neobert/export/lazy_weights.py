"""Weights that are computed or read one by one, for models larger than the memory of a host."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from neobert.runfiles.weights_header import INDEX, WEIGHTS

FILE_BYTES = 2 * 10**9
"""Size of a file of lazy weights, of a rank's rows, and of its optimizer shards. A file's weights are in
memory while it is written, and one core hashes it."""
METADATA = {"format": "pt"}


class LazyWeights(Mapping[str, Tensor]):
    """Weights by name. Each is computed at every access."""

    def __init__(self, compute: Mapping[str, Callable[[], Tensor]]) -> None:
        self._compute = compute

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
    for number, group in enumerate(groups_of(weights)):
        save_file(group, _partial(folder, number), METADATA)
        written.append(list(group))
        total_size += sum(each.nbytes for each in group.values())
        group.clear()  # before the next group is read
    if len(written) == 1:
        _partial(folder, 0).rename(folder / WEIGHTS)
        return
    files: dict[str, str] = {}
    for number, names in enumerate(written):
        file = f"model-{number + 1:05}-of-{len(written):05}.safetensors"
        _partial(folder, number).rename(folder / file)
        files |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(files.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def groups_of(weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield the weights in groups of at most `FILE_BYTES`, or of one weight that is larger."""
    group: dict[str, Tensor] = {}
    size = 0
    for name in weights:
        each = weights[name].contiguous()
        if group and size + each.nbytes > FILE_BYTES:
            yield group
            group, size = {}, 0
        group[name] = each
        size += each.nbytes
    if group:
        yield group


def _partial(folder: Path, number: int) -> Path:
    return folder / f"model-{number + 1:05}.safetensors"
