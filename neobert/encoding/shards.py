"""Results of a model on disk: shards while a job runs, merged into one file when it ends.

OUTPUT.parts/manifest.json   texts, model and settings; a job with others is rejected
OUTPUT.parts/00000.npy       results of the first texts, such as embeddings, written atomically
OUTPUT.parts/00000.json      counts of the same texts, written before the results
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from neobert.atomic_write import NO_ROOM, describe_write_error, write_atomically
from neobert.encoding.counts import TextCounts
from neobert.errors import EXIT_TRAINING_FAILED, EXIT_USAGE, ProjectError
from neobert.folder_lock import FolderInUseError, lock_folder
from neobert.plurals import listed
from neobert.printable import printable
from neobert.progress import OnProgress, Progress

MANIFEST = "manifest.json"
NPY, PARQUET, JSONL = ".npy", ".parquet", ".jsonl"
Text = TypeVar("Text")


class HasCounts(Protocol):
    """A model that adds the texts it reads to its counts."""

    counts: TextCounts


def npy_bytes(values: NDArray[Any]) -> bytes:
    """Return the content of a .npy file with these values."""
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


class Shards:
    """The shards of one output file. Several processes may write different ones.

    Args:
        suffix: suffix of a shard's file name.
        to_bytes: returns the content of a shard, which holds the results of its texts.
    """

    def __init__(self, output: Path, suffix: str = NPY, to_bytes: Callable[[Any], bytes] = npy_bytes) -> None:
        self.output, self._suffix, self._to_bytes = output, suffix, to_bytes
        self.folder = output.with_name(f"{output.name}.parts")

    @contextmanager
    def lock(self, identity: Mapping[str, Any]) -> Iterator[None]:
        """Create the shard folder if needed, and lock it for this job inside the `with` block.

        Raises `ProjectError` for shards of another job, if another process holds the lock, or if the folder
        cannot be written. A folder without shards is removed at the end.
        """
        with self.convert_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with lock_folder(self.folder):
                self._refuse_another_job(identity)
                content = json.dumps(identity, indent=1, sort_keys=True)
                try:
                    with self.convert_write_errors(self.folder / MANIFEST):
                        write_atomically(self.folder / MANIFEST, content.encode())
                    yield
                finally:
                    if not self._num_finished():  # nothing to continue, or the job has merged them
                        shutil.rmtree(self.folder, ignore_errors=True)
        except FolderInUseError:
            hint = "wait until that process ends, or choose another output"
            raise ProjectError(
                "encode-running", "another process is writing this output", hint, str(self.output)
            ) from None

    def write_missing(
        self,
        texts: Iterable[Text],
        texts_per_shard: int,
        model: HasCounts,
        compute: Callable[[list[Text], OnProgress], Any],
        progress: Progress,
        share: tuple[int, int] = (0, 1),
    ) -> tuple[int, TextCounts]:
        """Write the missing shards; return the total number of shards, and the counts of those written here.

        Args:
            compute: method of `model` that returns the results of texts.
            share: rank of this process and number of processes; each writes every n-th shard.
        """
        reader, number, done = iter(texts), -1, TextCounts()
        while group := list(islice(reader, texts_per_shard)):
            number += 1
            if number % share[1] != share[0]:
                continue
            if self.is_complete(number):
                progress.skip(len(group))
                continue
            model.counts = TextCounts()
            self.write(number, compute(group, progress.advance), model.counts)
            done.add(model.counts)
        return number + 1, done

    def is_complete(self, number: int) -> bool:
        """Return whether the results of a shard are written."""
        return self._shard_path(number, self._suffix).is_file()

    def write(self, number: int, values: Any, counts: TextCounts) -> None:
        """Write the counts, then the results, which complete the shard. Raises `ProjectError` on failure."""
        path = self._shard_path(number, self._suffix)
        with self.convert_write_errors(path):
            write_atomically(self._shard_path(number, ".json"), json.dumps(asdict(counts)).encode())
            write_atomically(path, self._to_bytes(values))

    def files(self, num_shards: int) -> list[Path]:
        """Return the paths of the first `num_shards` shards."""
        return [self._shard_path(number, self._suffix) for number in range(num_shards)]

    def counts(self, num_shards: int) -> TextCounts:
        """Return the summed counts of the first `num_shards` shards."""
        total = TextCounts()
        for number in range(num_shards):
            total.add(TextCounts(**json.loads(self._shard_path(number, ".json").read_text(encoding="utf-8"))))
        return total

    def merge(self, num_shards: int, write: Callable[[Path, list[Path]], None]) -> None:
        """Write the output file atomically with `write(file, shards)`, then remove the shards.

        Raises `ProjectError` and keeps the shards if the file cannot be written.
        """
        partial = self.output.with_name(f".{self.output.name}.{os.getpid()}")
        try:
            with self.convert_write_errors(self.output):
                write(partial, self.files(num_shards))
                partial.replace(self.output)
        finally:
            partial.unlink(missing_ok=True)
        shutil.rmtree(self.folder)

    @contextmanager
    def convert_write_errors(self, path: Path) -> Iterator[None]:
        """Convert an `OSError` in the `with` block to a `ProjectError` about this file."""
        try:
            yield
        except OSError as error:
            way = "free disk space" if error.errno in NO_ROOM else "fix the cause"
            raise ProjectError(
                "encode-write",
                f"{describe_write_error(error)} (finished shards kept: {self._num_finished():,})",
                f"{way}; the same command then continues the job",
                str(path),
                EXIT_TRAINING_FAILED,
            ) from error

    def _refuse_another_job(self, identity: Mapping[str, Any]) -> None:
        if not self._num_finished():
            return
        if changed := self._describe_changed_job(identity):
            raise ProjectError(
                "encode-parts",
                f"these shards belong to another job: {changed}",
                "undo the change, remove the folder, or choose another output",
                str(self.folder),
                EXIT_USAGE,
            )

    def _describe_changed_job(self, identity: Mapping[str, Any]) -> str:
        try:
            earlier = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            earlier = None
        if not isinstance(earlier, dict):
            return f"{MANIFEST} cannot be read"
        return describe_changes(earlier, identity)

    def _num_finished(self) -> int:
        return sum(1 for _ in self.folder.glob(f"*{self._suffix}"))

    def _shard_path(self, number: int, suffix: str) -> Path:
        return self.folder / f"{number:05d}{suffix}"


def describe_changes(earlier: Mapping[str, Any], identity: Mapping[str, Any]) -> str:
    """Return the differences from the identity of an earlier job as text; empty if there are none."""
    now = json.loads(json.dumps(identity))
    changed = sorted(name for name, value in now.items() if name not in earlier or earlier[name] != value)
    return listed([_describe_change(name, earlier, now[name]) for name in changed])


def _describe_change(name: str, whole: Mapping[str, Any], value: object) -> str:
    """Describe a change, with both values if they are scalars, or with the changed keys of an object."""
    if name not in whole:
        return f"{name} was not recorded by the earlier job"
    earlier = whole[name]
    if isinstance(earlier, dict) and isinstance(value, dict):
        keys = {key for key in {*earlier, *value} if earlier.get(key) != value.get(key)}
        return f"{name} changed ({printable(listed(sorted(keys)))})"
    if isinstance(earlier, dict | list) or isinstance(value, dict | list):
        return f"{name} changed"
    return f"{name} changed from {json.dumps(earlier)} to {json.dumps(value)}"


def write_arrays(path: Path, files: Sequence[Path], *, width: int, suffix: str = NPY) -> None:
    """Write the rows [N, width] of shards to a .npy, .parquet or .jsonl file."""
    WRITERS[suffix](path, files, width)


def _write_npy(path: Path, files: Sequence[Path], hidden_size: int) -> None:
    shards = [np.load(file, mmap_mode="r") for file in files]
    descr = np.lib.format.dtype_to_descr(shards[0].dtype)
    with path.open("xb") as output:
        shape = (sum(map(len, shards)), hidden_size)
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(output, header)
        for shard in shards:
            output.write(shard.tobytes())


def _write_parquet(path: Path, files: Sequence[Path], hidden_size: int) -> None:
    """Write a column `embedding` of lists of fixed size, one row group per shard."""
    schema = pa.schema([("embedding", pa.list_(pa.float32(), hidden_size))])
    with pq.ParquetWriter(path, schema) as writer:
        for file in files:
            values = pa.array(np.load(file).reshape(-1))
            writer.write_table(pa.table([pa.FixedSizeListArray.from_arrays(values, hidden_size)], schema))


def _write_lines(path: Path, files: Sequence[Path], hidden_size: int) -> None:  # noqa: ARG001
    """Write an object with the key `embedding` per row."""
    with path.open("x", encoding="utf-8") as output:
        for file in files:
            output.writelines(json.dumps({"embedding": row}) + "\n" for row in np.load(file).tolist())


WRITERS = {NPY: _write_npy, PARQUET: _write_parquet, JSONL: _write_lines}
