"""Probe of the config file of accelerate, which may request features that this launcher does not use.

Runs are not started through accelerate, so the file has no effect; rules report its settings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from launcher.io.files import expanded
from validators.facts_host import AccelerateFileFacts

NAMED_BY = "ACCELERATE_CONFIG_FILE"
DEFAULT_NAMES = ("default_config.yaml", "default_config.json")
MAX_BYTES = 64 * 1024
MAX_VALUE_LENGTH = 40


def probe_accelerate_file(environment: Mapping[str, str]) -> AccelerateFileFacts | None:
    """Read the file set in ACCELERATE_CONFIG_FILE, or else the default file; None if there is none."""
    named = environment.get(NAMED_BY, "")
    if named:
        return _read(expanded(named), is_named=True)
    # `Path.is_file` raises without permission.
    default = next((path for path in _default_files(environment) if os.path.isfile(path)), None)
    return None if default is None else _read(default, is_named=False)


def _default_files(environment: Mapping[str, str]) -> list[Path]:
    """Return the possible paths of the default file that `accelerate config` writes."""
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = expanded(environment.get("HF_HOME") or f"{cache}/huggingface")
    return [home / "accelerate" / name for name in DEFAULT_NAMES]


def _read(path: Path, *, is_named: bool) -> AccelerateFileFacts:
    try:
        content = _parse(path)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        return AccelerateFileFacts(path=str(path), is_named=is_named, error=_reason(error))
    fsdp = content.get("fsdp_config")
    return AccelerateFileFacts(
        path=str(path),
        is_named=is_named,
        distributed_type=_text(content, "distributed_type"),
        fsdp_version=_text(fsdp, "fsdp_version") if isinstance(fsdp, dict) else "",
    )


def _parse(path: Path) -> dict[Any, Any]:
    """Parse the file as YAML, a superset of JSON. Raises ValueError for large files and for pipes."""
    if not path.is_file():
        raise ValueError("not a regular file" if path.exists() else "no such file")
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES:,} bytes")
    content = yaml.safe_load(raw.decode("utf-8", errors="replace"))
    if not isinstance(content, dict):
        raise ValueError("not a mapping")
    return content


def _text(content: dict[Any, Any], key: str) -> str:
    value = content.get(key)
    return str(value)[:MAX_VALUE_LENGTH] if isinstance(value, str | int) else ""


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error) if isinstance(error, ValueError) else "not YAML"
