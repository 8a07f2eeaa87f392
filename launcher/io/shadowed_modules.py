"""Modules that shadow the project's own. Imports nothing of the project, which may be shadowed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

# In a wheel, the other three are inside `neobert` (hatch_build.py).
IS_CHECKOUT = __name__.startswith("launcher.")
OWN_MODULES = ("neobert", "launcher", "profiles", "validators") if IS_CHECKOUT else ("neobert",)
REMOVE_SHADOW = "remove that folder from PYTHONPATH, or install the project in a separate environment"
PROJECT_ROOT = Path(__file__).resolve().parents[__name__.count(".")]


def find_shadowed(path: Sequence[str]) -> dict[str, str]:
    """Return the project's modules that would be imported from another file, with that file."""
    origins = {module: _import_path(module, path) for module in OWN_MODULES}
    return {name: str(file) for name, file in origins.items() if file and file.parent != PROJECT_ROOT / name}


def describe_shadowed(path: Sequence[str]) -> str:
    """Return a message that names the shadowed modules; empty if there are none."""
    return ", ".join(f"{name} is imported from {file}" for name, file in find_shadowed(path).items())


def _import_path(module: str, path: Sequence[str]) -> Path | None:
    spec = PathFinder.find_spec(module, list(path))
    return Path(spec.origin).resolve() if spec and spec.origin else None
