"""Interpreter, distributions, and modules that shadow this project's own."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from launcher.io.shadowed_modules import PROJECT_ROOT, find_shadowed
from launcher.probes.probe import Subject
from neobert.kernel_table import OPTIONAL_PACKAGES
from neobert.precision.libraries import LIBRARIES
from neobert.trackers.table import TRACKERS
from validators.facts_host import SoftwareFacts

DISTRIBUTIONS = (
    "accelerate", "datasets", "kernels", "neobert-launch", "numpy", "nvidia-ml-py", "peft", "psutil",
    "pyarrow", "pydantic", "pyyaml", "rich", "safetensors", "tokenizers", "torch", "transformers", "typer",
    *(package.name for package in OPTIONAL_PACKAGES),
    *(library.package for library in LIBRARIES.values()),
    *(tracker.package for tracker in TRACKERS.values() if tracker.package is not None),
)  # fmt: skip
PROJECT, CONSTRAINTS = "neobert-launch", "constraints.txt"
TORCH, TORCH_VERSION_FILE = "torch", "torch/version.py"
CUDA_VERSION = re.compile(r"^cuda\b[^=]*=\s*['\"](\d[\d.]*)['\"]", re.MULTILINE)
PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;#]+)", re.MULTILINE)


def probe_software(subject: Subject) -> SoftwareFacts:
    """Return Python's version, the versions of packages from their metadata, and shadowed modules."""
    return SoftwareFacts(
        python=platform.python_version(),
        packages=installed_versions(DISTRIBUTIONS),
        pinned=read_pins(find_constraints(PROJECT_ROOT)),
        shadowed=find_shadowed(child_module_path(subject.folder)),
        torch_cuda=torch_cuda_version(),
    )


def installed_versions(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of the distributions that are installed."""
    return dict(_iterate_versions(names))


def _iterate_versions(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def torch_cuda_version() -> str:
    """Return the CUDA version that the installed torch was built with; empty for a CPU build or no torch."""
    try:
        files = metadata.files(TORCH) or ()
    except metadata.PackageNotFoundError:
        return ""
    for file in files:
        if str(file) == TORCH_VERSION_FILE:
            return read_cuda_version(Path(str(file.locate())))
    return ""


def read_cuda_version(version_file: Path) -> str:
    """Read the value of `cuda` from torch/version.py; empty if it is None or the file cannot be read."""
    try:
        text = version_file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = CUDA_VERSION.search(text)
    return match[1] if match else ""


def find_constraints(project: Path) -> Path:
    """Return constraints.txt in a checkout, or as installed with the wheel; it may not exist."""
    in_checkout = project / CONSTRAINTS
    if in_checkout.is_file():
        return in_checkout
    try:
        installed = metadata.files(PROJECT) or ()
    except metadata.PackageNotFoundError:
        installed = ()
    return next((Path(str(file.locate())) for file in installed if file.name == CONSTRAINTS), in_checkout)


def read_pins(constraints: Path) -> dict[str, str]:
    """Return the exact pins of a constraints file by normalized name; empty if the file is missing."""
    if not constraints.is_file():
        return {}
    text = constraints.read_text(encoding="utf-8")
    return {name.lower().replace("_", "-"): version for name, version in PIN.findall(text)}


def child_module_path(folder: Path) -> list[str]:
    """Return the module search path of a child: `sys.path` without `folder`, unless PYTHONPATH has it."""
    asked_for = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [entry for entry in sys.path if entry in asked_for or entry not in ("", str(folder))]
