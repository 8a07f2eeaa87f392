"""Probe of the trainer's imports, and of a small matrix product on every device.

`python -m neobert.probes.hardware.imports cpu|cuda NUM_DEVICES [MODULE ...]` prints one JSON object.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

REQUIRED = ("torch", "transformers", "accelerate", "tokenizers", "safetensors.torch")
SIZE = 64


def main(arguments: Sequence[str]) -> None:
    """Print the import errors and the result of a matrix product on each device, as JSON."""
    device, count, *modules = arguments
    print(json.dumps(try_imports_and_kernels(device, int(count), (*REQUIRED, *modules))))


def try_imports_and_kernels(device: str, num_devices: int, modules: Sequence[str]) -> dict[str, Any]:
    """Import `modules`, then run a matrix product on each device; return errors, digest and CUDA version."""
    failed = {name: reason for name in modules if (reason := import_error(name))}
    found = {"device": device, "num_devices": num_devices, "cuda_version": "", "failed": failed}
    found["loaded"] = loaded_files_digest()
    if "torch" in failed:
        return found | {"kernel_error": "torch cannot be imported"}
    import torch

    return found | {
        "cuda_version": torch.version.cuda or "",
        "kernel_error": kernel_error(device, num_devices),
    }


def loaded_files_digest() -> str:
    """Return a SHA-256 of path, size, mtime and ctime of every imported file, to detect edited files."""
    found = sorted(filter(None, (getattr(module, "__file__", None) for module in [*sys.modules.values()])))
    digest = hashlib.sha256()
    for name in found:
        with suppress(OSError):  # a module in an archive
            seen = os.stat(name)
            digest.update(f"{name}\0{seen.st_size} {seen.st_mtime_ns} {seen.st_ctime_ns}\0".encode())
    return digest.hexdigest()


def import_error(name: str) -> str:
    """Import a module; return the first line of the error it raises, or an empty string."""
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def kernel_error(device: str, num_devices: int) -> str:
    """Multiply small integers (exact in bf16) on each device; return the first error, or an empty string."""
    names = [f"cuda:{index}" for index in range(num_devices)] if device == "cuda" else ["cpu"]
    for name in names:
        try:
            is_right = is_product_correct(name)
        except Exception as error:
            return f"{name}: {type(error).__name__}: {error}".splitlines()[0]
        if not is_right:
            return f"{name}: wrong result of a matrix product of small integers"
    return ""


def is_product_correct(device: str) -> bool:
    """Return whether a bf16 matrix product on `device` equals the int64 product on the host, bit for bit."""
    import torch

    left = torch.arange(SIZE * SIZE).reshape(SIZE, SIZE) % 3 - 1
    right = torch.arange(SIZE * SIZE).reshape(SIZE, SIZE) % 2
    found = left.to(device, torch.bfloat16) @ right.to(device, torch.bfloat16)
    return bool(torch.equal(found.to("cpu", torch.int64), left @ right))


if __name__ == "__main__":
    main(sys.argv[1:])
