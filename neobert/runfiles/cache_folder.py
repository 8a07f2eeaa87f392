"""Cache folder of prepared text. Imports no torch: preflight checks it too."""

from __future__ import annotations

import os
from pathlib import Path

from neobert.config.schema import DatasetConfig
from neobert.errors import ProjectError

CACHE_ENV = "NEOBERT_CACHE"


def cache_folder(config: DatasetConfig) -> Path:
    """Return the cache folder for prepared text: dataset.cache_dir, $NEOBERT_CACHE or the user's cache.

    Raises `ProjectError` DAT009 if the path starts with `~` and the user has no home directory.
    """
    if config.cache_dir is not None:
        return _expand_path(config.cache_dir, "dataset.cache_dir")
    if named := os.environ.get(CACHE_ENV):
        return _expand_path(named, CACHE_ENV)
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "neobert"
    return _expand_path("~/.cache/neobert", "the default cache folder")


def _expand_path(text: str, source: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ProjectError(
            "DAT009",
            f"{source} is {text}, but this user has no home directory (HOME is not set)",
            "set NEOBERT_CACHE or dataset.cache_dir to a writable folder",
        ) from None
