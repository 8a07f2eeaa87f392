"""Cache folder of torch.compile: private to the user, with a subfolder for each version of the code."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from launcher.io.files import private_folder, why_not_private
from launcher.io.shadowed_modules import PROJECT_ROOT
from neobert.errors import EXIT_USAGE, ProjectError

FOLDER_ENV = "TORCHINDUCTOR_CACHE_DIR"
ALLOW_OWN_GRADIENTS_ENV = "TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD"
# Where operators, their gradients and the models are defined.
COMPILED_PACKAGES = ("families", "kernels", "model", "objectives", "tasks")
DIGEST_LENGTH = 16
DIGEST = re.compile(rf"[0-9a-f]{{{DIGEST_LENGTH}}}")
UNUSED_S = 30 * 86_400.0
"""Age of the last launch after which a version's graphs are removed: upgrades would fill the disk."""


def compile_cache_environment() -> dict[str, str]:
    """Return the variables that set torch.compile's cache folder; empty if the user has set the folder.

    torch's default folder is a path below /tmp that any user can create first. torch's cache key has the
    names of custom operators but not their gradients, so that a changed gradient would use an old graph; the
    folder name therefore contains a digest of the code. With it, graphs with custom autograd functions can be
    cached too. Raises ProjectError if others can write to the folder, because its files are executed.
    """
    if os.environ.get(FOLDER_ENV):
        return {}
    folder = private_folder("compiled")
    if folder is None:  # as without this project
        return {}
    require_private(folder)
    with suppress(OSError):  # full, or read-only: torch reports what it cannot write
        _remove_unused_folders(folder)
    return {FOLDER_ENV: str(folder / code_digest()), ALLOW_OWN_GRADIENTS_ENV: "1"}


def has_graphs() -> bool:
    """Return whether the cache folder contains compiled graphs, of any run."""
    folder = os.environ.get(FOLDER_ENV) or compile_cache_environment().get(FOLDER_ENV)
    return folder is not None and Path(folder).is_dir() and any(Path(folder).iterdir())


def _remove_unused_folders(folder: Path) -> None:
    """Mark this version's folder as used now, and remove folders that were not used for `UNUSED_S`."""
    current = folder / code_digest()
    current.mkdir(mode=0o700, exist_ok=True)
    os.utime(current)
    oldest_s = time.time() - UNUSED_S
    for entry in os.scandir(folder):
        is_version = DIGEST.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        if is_version and entry.stat(follow_symlinks=False).st_mtime < oldest_s:
            shutil.rmtree(entry.path, ignore_errors=True)


def require_private(folder: Path) -> None:
    """Raise ProjectError if the folder belongs to another user or others can write to it."""
    reason = why_not_private(folder)
    if not reason:
        return
    message = f"{reason}, but torch.compile executes the graphs that are cached in this folder"
    hint = f"remove {folder}, or set {FOLDER_ENV} to a folder of your own"
    raise ProjectError("unsafe-compile-cache", message, hint, str(folder), EXIT_USAGE)


@cache
def code_digest(root: Path = PROJECT_ROOT / "neobert") -> str:
    """Return a digest of the source files that compiled graphs depend on."""
    digest = sha256()
    for path in sorted(path for name in COMPILED_PACKAGES for path in (root / name).rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:DIGEST_LENGTH]
