"""Manifest of a checkpoint, which lists every file with its size and SHA-256 and is written last."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from neobert.printable import printable
from neobert.runfiles.checkpoint.refusal import (
    list_entries,
    refuse_later_version,
    refuse_link_out,
    refuse_other_kind,
    refuse_strays,
    unusable_checkpoint_error,
)
from neobert.runfiles.json_values import is_count

log = logging.getLogger(__name__)

FILE_NAME = "checkpoint.json"
PARTIAL_NAME = f".{FILE_NAME}"  # left by a kill during a rewrite of the manifest
SCHEMA_VERSION = 1
WHOLE, SHARDED = "whole", "sharded"
KINDS = (WHOLE, SHARDED)
"""Forms of weights: one file, or several with an index. A manifest without a kind has one file."""
NUM_THREADS = min(32, max(1, len(os.sched_getaffinity(0)) // 2))
"""Number of files hashed at the same time, on half of the cores of this process: a core hashes 0.5 to 2 GB/s,
slower than disks read. 32 threads on 16 cores left another thread 2 % of its rate (host of an H200)."""
BUFFER_BYTES = 8 * 2**20
"""Bytes that are read and hashed at a time. With the 256 KiB of `hashlib.file_digest`, threads take the
interpreter's lock so often that another thread has a third of the rate that these leave it (same host)."""
# Errors of network and FUSE file systems that cannot sync a folder.
UNSYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Summary of a checkpoint's manifest; `size_bytes` is the sum of all files, `kind` one of `KINDS`."""

    step: int
    config_digest: str
    created_utc: str
    size_bytes: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    kind: str = WHOLE


def seal_checkpoint(
    folder: Path,
    step: int,
    config_digest: str,
    created_utc: str,
    metrics: Mapping[str, float] | None = None,
    kind: str = WHOLE,
) -> None:
    """Sync all files of a checkpoint to disk, then write and sync its manifest.

    Args:
        metrics: evaluation metrics of this step, from which the best checkpoint is chosen.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / FILE_NAME)
    for path in paths:
        sync_to_disk(path)
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        described = dict(zip(paths, pool.map(_describe_file, paths), strict=True))
    files = {path.relative_to(folder).as_posix(): each for path, each in described.items()}
    content = {
        "schema_version": SCHEMA_VERSION,
        "step": step,
        "config_digest": config_digest,
        "created_utc": created_utc,
        "metrics": dict(metrics or {}),
        "files": files,
        **({} if kind == WHOLE else {"kind": kind}),
    }
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_to_disk(path)
    _write_manifest(folder / FILE_NAME, content)
    sync_to_disk(folder)


def add_metrics(folder: Path, metrics: Mapping[str, float]) -> None:
    """Set the evaluation metrics in the manifest of an existing checkpoint, atomically.

    Raises `OSError`, and `ProjectError` CKP007 if the manifest is missing or damaged.
    """
    content = _read_verified_content(folder)
    if content.get("metrics") == metrics:
        return
    partial = folder / PARTIAL_NAME
    try:
        _write_manifest(partial, content | {"metrics": dict(metrics)})
        partial.replace(folder / FILE_NAME)
    finally:
        partial.unlink(missing_ok=True)
    sync_to_disk(folder)


def manifest_digest(folder: Path) -> str:
    """Return a SHA-256 over the file list of the manifest, independent of the metrics in it.

    Raises `ProjectError` CKP007 if the manifest is missing or damaged.
    """
    listing = json.dumps(_read_verified_content(folder)["files"], sort_keys=True)
    return hashlib.sha256(listing.encode()).hexdigest()


def verify_checkpoint(folder: Path) -> Manifest:
    """Verify every file of a checkpoint against its manifest, and return the manifest.

    Raises `ProjectError` CKP007 for the first file that is missing or a link out of the folder, else for the
    first that differs in size or content; `StrayEntryError` if all files are intact but the folder has other
    entries; and `PermissionError` if a file may not be read, because the checkpoint may be intact.
    """
    content = _read_verified_content(folder)
    present = _file_names(folder)
    for name in content["files"]:
        if name not in present:
            raise unusable_checkpoint_error(folder, f"{printable(name)} is missing")
        refuse_link_out(folder, name)
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        list(pool.map(partial(verify_file, folder), content["files"], content["files"].values()))
    refuse_strays(folder, present - {FILE_NAME, PARTIAL_NAME}, content["files"])
    return _build_manifest(content)


def verify_sizes(folder: Path) -> Manifest:
    """Verify that every file of a checkpoint has its size, without reading it, and return the manifest.

    Raises `ProjectError` CKP007 if a file is missing or of another size, and `PermissionError`.
    """
    content = _read_verified_content(folder)
    for name, expected in content["files"].items():
        _verify_size(folder, name, expected)
    return _build_manifest(content)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint without verifying its files. Raises `ProjectError` CKP007."""
    return _build_manifest(_read_verified_content(folder))


def sync_to_disk(path: Path) -> None:
    """Flush a file or folder to disk (fsync), and drop it from the page cache.

    Raises `OSError`; only if the file system does not support fsync of folders, it is logged once instead.
    """
    if not path.is_dir():
        _fsync_path(path)
        return
    try:
        _fsync_path(path)
    except OSError as error:
        if error.errno not in UNSYNCED:
            raise
        _warn_unsynced(error.strerror)


def _fsync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # only a hint to the kernel
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


@cache
def _warn_unsynced(reason: str) -> None:
    message = "this file system does not sync folders (%s): a power failure may lose the newest checkpoint"
    log.warning(message, reason)


def _write_manifest(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content | {"sha256": _content_digest(content)}, indent=2), encoding="utf-8")
    sync_to_disk(path)


def _build_manifest(content: Mapping[str, Any]) -> Manifest:
    return Manifest(
        step=content["step"],
        config_digest=content["config_digest"],
        created_utc=content["created_utc"],
        size_bytes=sum(each["size"] for each in content["files"].values()),
        metrics=content.get("metrics", {}),
        kind=content.get("kind", WHOLE),
    )


def _describe_file(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": file_sha256(path)}


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content as hexadecimal text."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        size = max(4096, os.fstat(file.fileno()).st_size)  # files of /proc have content and the size 0
        buffer = memoryview(bytearray(min(BUFFER_BYTES, size)))
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
    return digest.hexdigest()


def _content_digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _file_names(folder: Path) -> set[str]:
    try:
        return set(list_entries(folder))
    except PermissionError:
        raise
    except OSError as error:
        raise unusable_checkpoint_error(folder, f"the folder cannot be read: {error}") from error


def _read_verified_content(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise unusable_checkpoint_error(folder, "no such checkpoint folder")
    refuse_link_out(folder, FILE_NAME)
    return read_content(folder)


def read_content(folder: Path) -> dict[str, Any]:
    """Read and verify the content of a manifest, which may be a symlink, as in the Hub cache.

    Its digest and the key `schema_version` have the same form in every version. Raises `ProjectError` CKP007
    if it is missing, damaged, or of a later version or an unknown kind, and `PermissionError`.
    """
    try:
        content = _read_json_object(folder / FILE_NAME)
        declared = content.pop("sha256")
    except FileNotFoundError:
        raise unusable_checkpoint_error(
            folder, f"no {FILE_NAME}: not a checkpoint, or an incomplete save"
        ) from None
    except PermissionError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise unusable_checkpoint_error(folder, f"{FILE_NAME} is damaged") from None
    version = content.get("schema_version")
    if declared != _content_digest(content) or not is_count(version) or version < SCHEMA_VERSION:
        raise unusable_checkpoint_error(folder, f"{FILE_NAME} is damaged")
    refuse_later_version(folder, FILE_NAME, version, SCHEMA_VERSION)
    if not _is_well_formed(content):
        raise unusable_checkpoint_error(folder, f"{FILE_NAME} has values of wrong types")
    refuse_other_kind(folder, FILE_NAME, content.get("kind", WHOLE), KINDS)
    return content


def _read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises `ValueError` for invalid JSON, and `TypeError` for other JSON values.

    A pipe or device, which could block, is not opened: `ValueError`.
    """
    if path.exists() and not path.is_file():
        raise ValueError("this is not a file")
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict):
        raise TypeError("this is not an object")
    return content


def _is_well_formed(content: Mapping[str, Any]) -> bool:
    files, metrics = content.get("files"), content.get("metrics", {})
    return (
        is_count(content.get("step"))
        and all(isinstance(content.get(name), str) for name in ("config_digest", "created_utc"))
        and isinstance(files, dict)
        and all(map(_is_file_description, files.values()))
        and isinstance(content.get("kind", WHOLE), str)
        and isinstance(metrics, dict)
        and all(type(value) in (int, float) for value in metrics.values())
    )


def _is_file_description(value: Any) -> bool:
    return isinstance(value, dict) and is_count(value.get("size")) and isinstance(value.get("sha256"), str)


def verify_file(folder: Path, name: str, expected: Mapping[str, Any]) -> None:
    """Compare size and SHA-256 of a file with the manifest's.

    Raises `ProjectError` CKP007 if they differ or the file cannot be read, and `PermissionError`.
    """
    _verify_size(folder, name, expected)
    path = folder / name
    with _convert_read_errors(folder, name):
        is_intact = path.is_file() and file_sha256(path) == expected["sha256"]
    if not is_intact:
        raise unusable_checkpoint_error(folder, f"the content of {printable(name)} changed after the save")


def _verify_size(folder: Path, name: str, expected: Mapping[str, Any]) -> None:
    with _convert_read_errors(folder, name):
        size = (folder / name).stat().st_size
    if size != expected["size"]:
        raise unusable_checkpoint_error(folder, f"{printable(name)} has {size} bytes, not {expected['size']}")


@contextmanager
def _convert_read_errors(folder: Path, name: str) -> Iterator[None]:
    """Convert read errors to CKP007, except missing permission: such a file may be intact."""
    try:
        yield
    except FileNotFoundError:
        raise unusable_checkpoint_error(folder, f"{printable(name)} is missing") from None
    except PermissionError:
        raise
    except OSError as error:
        raise unusable_checkpoint_error(folder, f"{printable(name)} cannot be read: {error}") from error
