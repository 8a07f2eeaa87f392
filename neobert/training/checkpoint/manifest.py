"""The manifest of a checkpoint: every file with its size and SHA-256. Written last, it vouches for all."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from neobert.errors import ProjectError

log = logging.getLogger(__name__)

FILE_NAME = "checkpoint.json"
SCHEMA_VERSION = 1
CODE = "CKP007"
# What network and FUSE file systems answer that know no sync of a folder.
UNSYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a complete checkpoint says of itself."""

    step: int
    config_digest: str
    created_utc: str
    size_bytes: int
    metrics: Mapping[str, float] = field(default_factory=dict)


def broken(folder: Path, reason: str, hint: str = "") -> ProjectError:
    """Build the error for a checkpoint that cannot be resumed from."""
    return ProjectError(code=CODE, message=reason, hint=hint, place=str(folder))


def seal(
    folder: Path, step: int, config_digest: str, created_utc: str, metrics: Mapping[str, float] | None = None
) -> None:
    """Make the files durable, write the manifest, and make that durable too.

    Args:
        metrics: what was evaluated at this step, for the best checkpoint to be found by.
    """
    paths = sorted(_files(folder))
    for path in paths:
        sync(path)
    files = {path.relative_to(folder).as_posix(): _describe(path) for path in paths}
    content = {
        "schema_version": SCHEMA_VERSION,
        "step": step,
        "config_digest": config_digest,
        "created_utc": created_utc,
        "metrics": dict(metrics or {}),
        "files": files,
    }
    for path in folder.rglob("*"):
        if path.is_dir():
            sync(path)
    _write(folder / FILE_NAME, content)
    sync(folder)


def add_metrics(folder: Path, metrics: Mapping[str, float]) -> None:
    """Have a manifest say what was evaluated after its checkpoint was written. Readers see old or new.

    Raises `OSError`, and `ProjectError` CKP007 where there is no manifest to add to.
    """
    content = _read(folder)
    if content.get("metrics") == metrics:
        return
    partial = folder / f".{FILE_NAME}"
    try:
        _write(partial, content | {"metrics": dict(metrics)})
        partial.replace(folder / FILE_NAME)
    finally:
        partial.unlink(missing_ok=True)
    sync(folder)


def verify(folder: Path) -> Manifest:
    """Check every file of a checkpoint against its manifest.

    Raises `ProjectError` CKP007 naming the first file that is missing, of another size, or of other content,
    and `PermissionError` where this user may not look: nothing is known to be wrong then.
    """
    content = _read(folder)
    for name, expected in content["files"].items():
        _verify_file(folder, name, expected)
    return _summary(content)


def read_manifest(folder: Path) -> Manifest:
    """Read what a checkpoint says of itself, and look at none of its files. Raises `ProjectError` CKP007."""
    return _summary(_read(folder))


def sync(path: Path) -> None:
    """Wait until a file or a folder would outlive this machine, and have it read from there next time.

    A folder that its file system does not sync is no failure, which is said once; a file is one.
    """
    if not path.is_dir():
        _sync(path)
        return
    try:
        _sync(path)
    except OSError as error:
        if error.errno not in UNSYNCED:
            raise
        _tell_unsynced(error.strerror)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # advice, and no more
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


@cache
def _tell_unsynced(reason: str) -> None:
    words = "this file system does not sync folders (%s): a power cut may cost the newest checkpoint its name"
    log.warning(words, reason)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content | {"sha256": _digest_of(content)}, indent=2), encoding="utf-8")
    sync(path)


def _summary(content: Mapping[str, Any]) -> Manifest:
    return Manifest(
        step=content["step"],
        config_digest=content["config_digest"],
        created_utc=content["created_utc"],
        size_bytes=sum(each["size"] for each in content["files"].values()),
        metrics=content.get("metrics", {}),
    )


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and path != folder / FILE_NAME)


def _describe(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise broken(folder, "there is no such checkpoint folder")
    try:
        content = json.loads((folder / FILE_NAME).read_bytes())
        declared = content.pop("sha256")
    except FileNotFoundError:
        raise broken(folder, f"the checkpoint has no {FILE_NAME}, so its save never ended") from None
    except PermissionError:
        raise
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        raise broken(folder, f"{FILE_NAME} is damaged") from None
    if declared != _digest_of(content) or content["schema_version"] != SCHEMA_VERSION:
        raise broken(folder, f"{FILE_NAME} is damaged, or another version wrote it")
    return dict(content)


def _verify_file(folder: Path, name: str, expected: dict[str, Any]) -> None:
    path = folder / name
    try:
        size = path.stat().st_size
        is_intact = path.is_file() and size == expected["size"] and _sha256(path) == expected["sha256"]
    except FileNotFoundError:
        raise broken(folder, f"{name} is missing") from None
    except PermissionError:
        raise
    except OSError as error:
        raise broken(folder, f"{name} cannot be read: {error}") from error
    if size != expected["size"]:
        raise broken(folder, f"{name} has {size} bytes in place of {expected['size']}")
    if not is_intact:
        raise broken(folder, f"the content of {name} is not what was saved")
