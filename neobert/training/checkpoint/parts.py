"""Weights of a sharded run on their way to disk: each rank writes its rows, and rank 0 joins them.

The files are those of a run with whole weights, byte for byte. They are not joined by torch's distributed
checkpointing: its headers lack the metadata that releases of transformers before 5 require, and are not
padded, so tensors do not begin at multiples of their size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from neobert.export.lazy_weights import LazyWeights, groups_of

PARTS = "parts"


def write_parts(folder: Path, weights: Mapping[str, Tensor], rank: int, group: Any) -> None:
    """Write this rank's rows. All ranks of the group call it; if one fails, all raise `OSError`."""
    problem = None
    try:
        (folder / PARTS).mkdir(exist_ok=True)
        sizes = {name: each.nbytes for name, each in weights.items()}
        for number, names in enumerate(groups_of(sizes)):
            rows = {name: weights[name].contiguous() for name in names}
            save_file(rows, folder / PARTS / f"{rank:05}-{number:05}.safetensors")
    except (OSError, SafetensorError) as error:
        problem = str(error)
    problems: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(problems, problem, group=group)
    reasons = [f"rank {each}: {reason}" for each, reason in enumerate(problems) if reason is not None]
    if reasons:
        raise OSError("; ".join(reasons))


def joined_parts(folder: Path, names: Sequence[str]) -> LazyWeights:
    """Return the full weights of the parts in a folder, in this order; each is read when it is used."""
    holders: dict[str, list[Any]] = {name: [] for name in names}
    sizes = dict.fromkeys(names, 0)
    for path in sorted((folder / PARTS).iterdir()):  # in the order of the ranks, and so of the rows
        file: Any = safe_open(path, framework="pt")
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            holders[name].append(file)
            sizes[name] += file.get_tensor(name).nbytes  # mapped, and not read yet
    return LazyWeights({name: partial(_join, name, files) for name, files in holders.items()}, sizes)


def _join(name: str, files: Sequence[Any]) -> Tensor:
    return torch.cat([file.get_tensor(name) for file in files])
