"""Device and packages, on which a figure depends besides the config."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from neobert import __version__
from neobert.kernel_table import OPTIONAL_PACKAGES
from neobert.plurals import counted

PACKAGES = ("torch", "transformers", "accelerate", *(package.name for package in OPTIONAL_PACKAGES))


def versions() -> dict[str, str]:
    """Name the versions of Python, CUDA, this project, and of those packages that are installed."""
    found = {"python": platform.python_version(), "neobert-launch": __version__}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def device_name(device: torch.device) -> str:
    """Name the card, or the processor's kind and the threads that compute."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU {platform.machine()}, {counted(torch.get_num_threads(), 'thread')}"


def gpu_uuid(device: torch.device) -> str:
    """Name a card as the driver does."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
