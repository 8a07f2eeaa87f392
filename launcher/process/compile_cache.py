"""Folder of compiled graphs, whose files are executed: the user's own, one for each version of the code."""

from __future__ import annotations

import os
import stat
from functools import cache
from hashlib import sha256
from pathlib import Path

from launcher.io.shadowed_modules import PROJECT_ROOT
from neobert.errors import EXIT_USAGE, ProjectError

FOLDER_ENV = "TORCHINDUCTOR_CACHE_DIR"
ALLOW_OWN_GRADIENTS_ENV = "TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD"
# Where operators, their gradients and the models are defined.
COMPILED_PACKAGES = ("families", "kernels", "model", "objectives", "tasks")
DIGEST_LENGTH = 16


def compile_cache_environment() -> dict[str, str]:
    """Return the variables by which torch.compile keeps its graphs; none where the user names a folder.

    torch's own default is a path below /tmp that anybody can create first. Its key of a graph holds the names
    of our operators but not their gradients, so that a changed gradient would find the graph of the old one:
    the folder's name has a digest of the code. With that, graphs with gradients of our own may be kept too.
    Raises ProjectError for a folder that others can write to.
    """
    if os.environ.get(FOLDER_ENV):
        return {}
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        folder = Path(base).expanduser() / "neobert" / "compiled"
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or one that cannot be written: as without this project
        return {}
    require_private(folder)
    return {FOLDER_ENV: str(folder / code_digest()), ALLOW_OWN_GRADIENTS_ENV: "1"}


def require_private(folder: Path) -> None:
    """Raise ProjectError unless the folder is this user's and nobody else can write to it."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        reason = "is not a folder"
    elif found.st_uid != os.geteuid():
        reason = f"belongs to user {found.st_uid}, not to {os.geteuid()}"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = f"can be written to by others (mode {stat.S_IMODE(found.st_mode):o})"
    else:
        return
    message = f"the cache of compiled graphs {reason}, and its files are executed"
    hint = f"remove {folder}, or set {FOLDER_ENV} to a folder of your own"
    raise ProjectError("unsafe-compile-cache", message, hint, str(folder), EXIT_USAGE)


@cache
def code_digest(root: Path = PROJECT_ROOT / "neobert") -> str:
    """Return a digest of the code that compiled graphs depend on."""
    found = sha256()
    for path in sorted(path for name in COMPILED_PACKAGES for path in (root / name).rglob("*.py")):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:DIGEST_LENGTH]
