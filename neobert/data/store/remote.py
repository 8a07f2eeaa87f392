"""Joined parts in an object store: verified copies in the cache folder, of bounded size.

A copy is complete when it has its manifest, which is written last; it is then used without the store. Every
file is compared with its size and SHA-256 in the manifest while it is copied.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from neobert.atomic_write import open_replacement, write_atomically
from neobert.config.corpora import corpus_paths
from neobert.config.schema import DatasetConfig
from neobert.data.sources.prepared import remote_copy_folder
from neobert.data.sources.retries import is_transient
from neobert.data.store.build import TOKENIZER_FOLDER
from neobert.data.store.build_lock import build_lock
from neobert.data.store.checksums import manifest_files
from neobert.data.store.token_store import convert_write_errors
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError, first_line
from neobert.progress import Progress
from neobert.runfiles.prepared_parts import MANIFEST, PART_FORMAT, PartNumber

INSTALL = "pip install 'fsspec>=2026' 's3fs>=2026'"
THREADS, PIECE_BYTES = 8, 1 << 24
MIB, GIB = 1 << 20, 1 << 30
Result = TypeVar("Result")


class _ContentMismatchError(OSError):
    """Content that differs from the manifest: truncated in transit, or replaced in the store."""


def fetch(dataset: DatasetConfig, on_progress: Callable[[], None] = lambda: None) -> Path:
    """Copy `dataset.path` to the cache unless a complete copy exists; return the folder of the copy.

    Raises DAT001 for anything but joined parts, DAT009 if the copy exceeds `dataset.cache_limit_gib`, and
    DAT010 for a file that is lost, replaced or cannot be read.
    """
    (url,) = corpus_paths(dataset)
    folder = remote_copy_folder(url, dataset)
    with build_lock(folder.with_name(f".{folder.name}.lock")) as report_progress:
        if not (folder / MANIFEST).exists():

            def report() -> None:
                report_progress()
                on_progress()

            _FolderCopy(url.rstrip("/"), folder, dataset, _file_system(url), report).copy_all()
        os.utime(folder / MANIFEST)  # the time of its last use
    return folder


def _file_system(url: str) -> Any:
    """Return the fsspec file system of a URL. Raises DAT001 if its package is missing."""
    try:
        return import_module("fsspec").core.url_to_fs(url)[0]
    except (ImportError, ValueError) as error:
        hint = f"install the package of the store; for s3://: {INSTALL}"
        raise ProjectError("DAT001", f"cannot be read: {error}", hint, url) from error


@dataclass(frozen=True)
class _FolderCopy:
    """Copy of one folder from an object store."""

    url: str
    folder: Path
    dataset: DatasetConfig
    store: Any
    on_progress: Callable[[], None]

    def copy_all(self) -> None:
        """Copy all files, and the manifest last. Files that an earlier attempt copied are not read again."""
        content = self._read_with_retries(lambda: self.store.cat_file(f"{self.url}/{MANIFEST}"), MANIFEST)
        files = _parse_manifest(content, f"{self.url}/{MANIFEST}")
        total = sum(file["bytes"] for file in files.values())
        make_room(self.folder, total, self.dataset.cache_limit_gib)
        progress = Progress(f"copying {self.url}", "MiB", total // MIB)
        done = 0

        def copy(item: tuple[str, dict[str, Any]]) -> int:
            self._read_with_retries(lambda: self._copy_file(*item), item[0])
            return int(item[1]["bytes"])

        with convert_write_errors(self.folder):
            self._copy_tokenizer()
            with ThreadPoolExecutor(THREADS) as pool:
                for size in _run_until_error(pool, copy, files.items()):
                    before, done = done, done + size
                    progress.advance(done // MIB - before // MIB)
                    self.on_progress()
            write_atomically(self.folder / MANIFEST, content)

    def _copy_tokenizer(self) -> None:
        """Copy the tokenizer, whose digest is compared when it is opened."""
        location = f"{self.url}/{TOKENIZER_FOLDER}"
        listed = self._read_with_retries(lambda: self.store.ls(location, detail=False), TOKENIZER_FOLDER)
        (self.folder / TOKENIZER_FOLDER).mkdir(parents=True, exist_ok=True)
        for name in (str(each).rpartition("/")[2] for each in listed):
            read = partial(self.store.cat_file, f"{location}/{name}")
            content = self._read_with_retries(read, f"{TOKENIZER_FOLDER}/{name}")
            write_atomically(self.folder / TOKENIZER_FOLDER / name, content)

    def _copy_file(self, name: str, described: dict[str, Any]) -> None:
        path = self.folder / name
        if path.exists() and path.stat().st_size == described["bytes"]:
            return  # complete: it was renamed after its checksum was compared
        path.parent.mkdir(parents=True, exist_ok=True)
        digest, size = sha256(), 0
        with open_replacement(path) as target, self.store.open(f"{self.url}/{name}", "rb") as source:
            while piece := source.read(PIECE_BYTES):
                target.write(piece)
                digest.update(piece)
                size += len(piece)
            if size != described["bytes"]:
                stated = f"{described['bytes']:,}"
                raise _ContentMismatchError(f"has {size:,} bytes, but the manifest states {stated}")
            if digest.hexdigest() != described["sha256"]:
                raise _ContentMismatchError("does not match its checksum in the manifest")

    def _read_with_retries(self, action: Callable[[], Result], name: str) -> Result:
        """Return the result of `action`, retried like streamed text. Raises DAT010 after the last retry."""
        dataset, attempt = self.dataset, 0
        while True:
            try:
                return action()
            except ProjectError:
                raise
            except Exception as error:
                attempt += 1
                if not is_transient(error) or attempt > dataset.streaming_read_retries:
                    raise _lost_file_error(f"{self.url}/{name}", error) from error
            first_s, longest_s = (
                dataset.streaming_read_retry_backoff_seconds,
                dataset.streaming_read_retry_max_backoff_seconds,
            )
            time.sleep(min(first_s * 2 ** (attempt - 1), longest_s))


def _run_until_error(
    pool: ThreadPoolExecutor, copy: Callable[[Any], int], items: Iterable[Any]
) -> Iterable[int]:
    """Yield the results of all items; after an error, cancel the items that have not begun."""
    try:
        yield from pool.map(copy, items)
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise


def _parse_manifest(content: bytes, location: str) -> dict[str, dict[str, Any]]:
    """Return the files of a manifest. Raises DAT001 for anything but the manifest of joined parts."""
    try:
        manifest = json.loads(content)
        files = {name: dict(file) for name, file in manifest_files(manifest).items()}
        if manifest["format_version"] == PART_FORMAT and all(map(_is_in_part_folder, files)):
            return files
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    hint = "set dataset.path to a folder that `neobert-launch data join` has joined"
    raise ProjectError("DAT001", "is not the manifest of joined parts", hint, location)


def _is_in_part_folder(name: str) -> bool:
    """Return whether a file is in the folder of a part: a manifest from outside must not name other paths."""
    folder, _, file = name.partition("/")
    return PartNumber.from_folder(folder) is not None and "/" not in file and file not in ("", ".", "..")


def make_room(folder: Path, num_bytes: int, limit_gib: float | None) -> None:
    """Remove the least recently used copies until `num_bytes` more bytes fit within the limit.

    Raises DAT009 if `num_bytes` alone exceeds it.
    """
    if limit_gib is None:
        return
    if num_bytes > limit_gib * GIB:
        message = f"the prepared data has {num_bytes / GIB:.1f} GiB (dataset.cache_limit_gib {limit_gib:g})"
        hint = f"raise dataset.cache_limit_gib to {num_bytes / GIB + 0.1:.1f}"
        raise ProjectError("DAT009", message, hint, "dataset.cache_limit_gib")
    others = [other.parent for other in folder.parent.glob(f"*/{MANIFEST}") if other.parent != folder]
    sizes = {other: sum(f.stat().st_size for f in other.rglob("*") if f.is_file()) for other in others}
    for other in sorted(others, key=lambda each: (each / MANIFEST).stat().st_mtime):
        if num_bytes + sum(sizes.values()) <= limit_gib * GIB:
            return
        (other / MANIFEST).unlink()  # first: a copy without it counts as incomplete
        shutil.rmtree(other)
        del sizes[other]


def _lost_file_error(location: str, error: Exception) -> ProjectError:
    if isinstance(error, _ContentMismatchError):
        message, hint = str(error), "join the parts, and copy them to the store again"
    elif isinstance(error, FileNotFoundError):
        message, hint = "does not exist", "copy the part to the store again"
    else:
        message = f"cannot be read: {type(error).__name__}: {first_line(error)}"
        hint = "check the connection and the credentials, and start again: complete files are kept"
    return ProjectError("DAT010", message, hint, location, EXIT_TRAINING_FAILED)
