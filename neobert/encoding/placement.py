"""Device and compute type of a model, and the identity of its outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from neobert.runfiles.checkpoint.model_files import model_digests

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def placement(device: str | None, dtype: str | None) -> tuple[torch.device, torch.dtype]:
    """Return device and compute type; by default the first GPU in bf16, else the CPU in fp32."""
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return where, DTYPES[dtype or ("bf16" if where.type == "cuda" else "fp32")]


def model_identity(folder: Path, device: str | None, dtype: str | None) -> dict[str, Any]:
    """Return what determines the outputs of a model as JSON values: its files, compute type and device kind.

    Results with other values are of another model, and are not continued.
    """
    where, computed_in = placement(device, dtype)
    names = {value: name for name, value in DTYPES.items()}
    return {"model": model_digests(folder), "dtype": names[computed_in], "device": where.type}


def num_processes(requested: int | None) -> int:
    """Return the number of processes; None: one per GPU, or one on the CPU."""
    return requested or max(1, torch.cuda.device_count())


def device_of(rank: int, size: int) -> str:
    """Return the device of one of `size` processes; on the CPU, they share its threads."""
    if torch.cuda.is_available():
        return f"cuda:{rank % torch.cuda.device_count()}"
    torch.set_num_threads(max(1, torch.get_num_threads() // size))
    return "cpu"
