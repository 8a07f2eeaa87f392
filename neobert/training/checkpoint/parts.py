"""Saving of a sharded run's weights: each rank writes its rows, and rank 0 joins them.

The files are byte for byte as in a run with whole weights. They are not joined by torch's distributed
checkpointing: its headers lack the metadata that releases of transformers before 5 require, and are not
padded, so tensors do not begin at multiples of their size.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from neobert.export.lazy_weights import LazyWeights, file_groups

log = logging.getLogger(__name__)

PARTS = "parts"


def write_parts(folder: Path, weights: Mapping[str, Tensor], rank: int, group: Any) -> None:
    """Write this rank's rows of the weights. All ranks of the group must call it; if one fails, all raise.

    Raises `OSError` with the reasons of all failed ranks.
    """
    failure = None
    try:
        (folder / PARTS).mkdir(exist_ok=True)
        sizes = {name: each.nbytes for name, each in weights.items()}
        for number, names in enumerate(file_groups(sizes)):
            rows = {name: weights[name].contiguous() for name in names}
            save_file(rows, folder / PARTS / f"{rank:05}-{number:05}.safetensors")
    except Exception as error:  # any: the other ranks would wait for this one
        failure = error
        if not isinstance(error, (OSError, SafetensorError)):
            log.exception("rank %d could not write its rows of the weights", rank)
    problems: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(problems, failure and f"{type(failure).__name__}: {failure}", group=group)
    reasons = [f"rank {each}: {reason}" for each, reason in enumerate(problems) if reason is not None]
    if reasons:
        raise OSError("; ".join(reasons)) from failure


def open_joined_parts(folder: Path, names: Sequence[str]) -> LazyWeights:
    """Return the full weights, in the order of `names`; their parts are read and joined at each use."""
    holders: dict[str, list[Path]] = {name: [] for name in names}
    sizes = dict.fromkeys(names, 0)
    for path in sorted((folder / PARTS).iterdir()):  # in the order of the ranks, and so of the rows
        with _open_part(path) as file:
            for name in file.keys():  # noqa: SIM118  (not a mapping)
                holders[name].append(path)
                sizes[name] += file.get_tensor(name).nbytes  # mapped, and not read yet
    return LazyWeights({name: partial(_join_tensor, name, paths) for name, paths in holders.items()}, sizes)


def _join_tensor(name: str, paths: Sequence[Path]) -> Tensor:
    return torch.cat([_read_rows(name, path) for path in paths])


def _read_rows(name: str, path: Path) -> Tensor:
    # Opened for one weight: the memory of a mapped file is freed at once, under the interpreter's lock, and
    # for all files of a model training would wait for seconds.
    with _open_part(path) as file:
        return cast(Tensor, file.get_tensor(name))


def _open_part(path: Path) -> Any:
    return safe_open(path, framework="pt")
