"""Device and compute type of a model, and the identity of its outputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from neobert.encoding.freed_memory import map_large_tensors
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.runfiles.checkpoint.model_files import model_digests

PROGRAMS_ENV, PROGRAMS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16"
"""Number of compiled primitives that oneDNN caches, one per tensor shape: enough for one run. Each run has
another length, so that with the default of 1,024 memory grew with the number of texts. Read before the first
primitive.
"""
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def resolve_placement(device: str | None, dtype: str | None) -> tuple[torch.device, torch.dtype]:
    """Return device and compute type; by default the first GPU in bf16, else the CPU in fp32.

    Raises `ProjectError` if a GPU is requested and none is visible.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if where.type == "cuda" and not torch.cuda.is_available():
        message, hint = "--device is cuda, but no GPU is visible", "remove --device, or set --device cpu"
        raise ProjectError("no-gpu", message, hint, exit_code=EXIT_USAGE)
    return where, DTYPES[dtype or ("bf16" if where.type == "cuda" else "fp32")]


def model_identity(folder: Path, device: str | None, dtype: str | None) -> dict[str, Any]:
    """Return what determines the outputs of a model, as JSON values: file digests, dtype and device kind.

    A job with other values is not resumed. Raises `ProjectError` like `resolve_placement`.
    """
    where, computed_in = resolve_placement(device, dtype)
    names = {value: name for name, value in DTYPES.items()}
    return {"model": model_digests(folder), "dtype": names[computed_in], "device": where.type}


def num_processes(requested: int | None, device: str | None) -> int:
    """Return `requested`; if it is None, one process per GPU, or one on the CPU.

    Raises `ProjectError` like `resolve_placement`.
    """
    where, _ = resolve_placement(device, None)
    return requested or (torch.cuda.device_count() if where.type == "cuda" else 1)


def device_for_rank(rank: int, size: int, device: str | None) -> str:
    """Return the device of process `rank` of `size`; on the CPU, limit it to its share of the threads.

    Raises `ProjectError` like `resolve_placement`.
    """
    if resolve_placement(device, None)[0].type == "cuda":
        return f"cuda:{rank % torch.cuda.device_count()}"
    os.environ.setdefault(PROGRAMS_ENV, PROGRAMS)
    map_large_tensors()
    torch.set_num_threads(max(1, torch.get_num_threads() // size))
    return "cpu"
