"""Hugging Face Hub names, which some config keys accept instead of local paths, and their local cache."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol

_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_hub_name(name_or_path: str) -> bool:
    """Return whether `name_or_path` has the form OWNER/NAME and does not exist as a local path."""
    return _NAME.fullmatch(name_or_path) is not None and not Path(name_or_path).exists()


def is_commit(revision: str) -> bool:
    """Return whether a revision is a full commit hash (40 hex digits), not a branch or a tag."""
    return _COMMIT.fullmatch(revision) is not None


def hub_cache() -> Path:
    """Return the cache folder of the Hugging Face Hub, from HF_HUB_CACHE, HF_HOME or XDG_CACHE_HOME."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    return Path(os.path.expanduser(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")))


def cached_commit(name: str, revision: str | None) -> str:
    """Return the commit of a cached branch or tag (default: main); return other revisions unchanged."""
    revision = revision or "main"
    try:
        branch = hub_cache() / f"models--{name.replace('/', '--')}" / "refs" / revision
        return branch.read_text(encoding="ascii").strip()
    except (OSError, ValueError):  # the revision is a commit
        return revision


def snapshot_folder(name: str, commit: str) -> Path:
    """Return the folder of a model repository at a commit in the cache, whether it exists or not."""
    return hub_cache() / f"models--{name.replace('/', '--')}" / "snapshots" / commit


class ModelSection(Protocol):
    """Keys of a section `model` that name its initial weights."""

    @property
    def pretrained_checkpoint(self) -> str | None:
        """Folder, weights file, or name on the Hub; None for random weights."""

    @property
    def revision(self) -> str | None:
        """Commit of the name on the Hub; None for a local path."""


def local_weights_path(section: ModelSection) -> str | None:
    """Return the local path of the initial weights, whether it exists or not; None for random weights.

    With a revision they are a snapshot in the Hub cache, which only the launcher downloads.
    """
    name, revision = section.pretrained_checkpoint, section.revision
    if name is None or revision is None or not is_pinned(name, revision):
        return name
    return str(snapshot_folder(name, revision))


def is_pinned(name: str, revision: str) -> bool:
    """Return whether `name` has the form OWNER/NAME and `revision` is a commit."""
    return _NAME.fullmatch(name) is not None and is_commit(revision)
