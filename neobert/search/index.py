"""Index of texts on disk: what `encode --index` writes and `search` reads, in bounded memory.

index.json       model, settings and digests of files
texts.jsonl      an object per row of the embeddings: `text`, the `row` of the whole text, and its `file`
offsets.npy      int64 [N + 1]: first byte of each row of texts.jsonl, and its size
embeddings.npy   float32 [N, D], rows of unit length; written last

Shapes: N texts or passages of long ones, D hidden size.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from neobert.atomic_write import open_replacement, write_atomically
from neobert.config.schema import TokenizerConfig
from neobert.data.sources.unreadable import unopened_error
from neobert.encoding.passages import Passages
from neobert.encoding.request import EMBEDDINGS, Request
from neobert.encoding.texts import Texts, size_and_digest
from neobert.errors import EXIT_CHECK_FAILED, EXIT_USAGE, ProjectError
from neobert.printable import printable
from neobert.runfiles.checkpoint.model_files import model_digests
from neobert.runfiles.model_folder import read_json
from neobert.runfiles.typed_json import parse_as

CODE = "search-index"
INDEX, TEXTS, OFFSETS = "index.json", "texts.jsonl", "offsets.npy"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """Size, modification time and digest of a file when the index was written."""

    size: int
    mtime_ns: int
    digest: str

    @classmethod
    def from_path(cls, path: Path) -> FileState:
        """Return the current state of a file, which is read completely for its digest.

        Raises `OSError` if the file is missing, and `ProjectError` DAT001 if it cannot be read.
        """
        state, (size, digest) = path.stat(), size_and_digest(path)
        return cls(size=size, mtime_ns=state.st_mtime_ns, digest=digest)

    def matches_file(self, path: Path) -> bool:
        """Return whether a file still has this content; it is read only if just its time has changed.

        Raises `ProjectError` DAT001 if the file is missing or unreadable.
        """
        try:
            state = path.stat()
        except OSError as error:
            raise unopened_error(path, error) from error
        if (state.st_size, state.st_mtime_ns) == (self.size, self.mtime_ns):
            return True
        return state.st_size == self.size and size_and_digest(path)[1] == self.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Content of index.json.

    Attributes:
        rows: number of rows of the embeddings.
        model: absolute path of the model folder.
        model_files: SHA-256 of each of its files that determine embeddings.
        source: absolute path of the file of the texts; None for a folder or a Hub dataset.
        files: states of texts.jsonl, offsets.npy and `source`, by path from the folder of the index.
    """

    schema_version: int
    rows: int
    model: str
    model_files: dict[str, str]
    pooling: str
    max_length: int
    prompt: str
    source: str | None
    files: dict[str, FileState]


def require_no_index(folder: Path) -> None:
    """Raise `ProjectError` if a folder contains a complete index; an incomplete one is continued."""
    if (folder / EMBEDDINGS).exists():
        hint = "choose a new folder, or remove this one"
        raise ProjectError(CODE, "the folder has an index already", hint, str(folder), EXIT_USAGE)


def write_index(request: Request, texts: Texts, identity: Any, settings: Mapping[str, Any]) -> int:
    """Write the files of an index except the embeddings, which follow later; return the number of texts.

    Raises `OSError`, and `ProjectError` if the texts no longer have the `identity` of the encoded ones.
    """
    from neobert.data.tokenize.tokenizers import load_tokenizer  # imports torch, which takes seconds
    from neobert.encoding.tokens import TextTokenizer

    folder, source = Path(request.output).parent, Path(request.texts).absolute()
    tokenizer = TextTokenizer(load_tokenizer(TokenizerConfig(path=request.folder)), settings["max_length"])
    num_texts, rows = _write_texts(folder, Passages(texts, tokenizer, settings["prompt"], request.max_length))
    if texts.identity() != identity:
        hint = f"remove {folder}, and encode the texts again"
        raise ProjectError(
            CODE, "the texts were edited while they were encoded", hint, texts.label, EXIT_CHECK_FAILED
        )
    named = [TEXTS, OFFSETS, *([str(source)] if source.is_file() else [])]
    header = Header(
        schema_version=SCHEMA_VERSION,
        rows=rows,
        model=str(Path(request.folder).absolute()),
        model_files=model_digests(Path(request.folder)),
        **{name: settings[name] for name in ("pooling", "max_length", "prompt")},
        source=str(source) if source.is_file() else None,
        files={name: FileState.from_path(folder / name) for name in named},
    )
    write_atomically(folder / INDEX, json.dumps(asdict(header), indent=1).encode())
    return num_texts


def _write_texts(folder: Path, texts: Passages) -> tuple[int, int]:
    """Write the passages and their offsets; return the number of texts, and of passages."""
    offsets = array("q", [0])
    row = -1
    with open_replacement(folder / TEXTS) as file:
        for passage in texts.passages():
            row = passage.row
            of_file = {"file": passage.file} if passage.file else {}
            file.write(json.dumps({"row": row, **of_file, "text": passage.text}).encode() + b"\n")
            offsets.append(file.tell())
    with open_replacement(folder / OFFSETS) as file:
        np.save(file, np.frombuffer(offsets, np.int64))
    return row + 1, len(offsets) - 1


class Index:
    """Index opened for search; texts and embeddings are read on demand."""

    def __init__(self, folder: Path, header: Header) -> None:
        self.header = header
        self._texts = folder / TEXTS
        self._offsets = _open_array(folder / OFFSETS, np.dtype(np.int64), (header.rows + 1,))
        self.embeddings = _open_array(folder / EMBEDDINGS, np.dtype(np.float32), (header.rows, None))

    def passage(self, number: int) -> dict[str, Any]:
        """Return the `row`, the `file` if there are several, and the `text` of a row of the embeddings."""
        start, stop = map(int, self._offsets[number : number + 2])
        with self._texts.open("rb") as file:
            file.seek(start)
            return {"row": number, **json.loads(file.read(stop - start))}

    def require_model(self, folder: Path) -> None:
        """Raise `ProjectError` if the index was written with another model."""
        now, then = model_digests(folder), self.header.model_files
        changed = sorted(name for name in {*now, *then} if now.get(name) != then.get(name))
        if changed:
            message = f"this is not the model of the index: {printable(changed[0])} differs"
            own = self.header.model
            hint = "encode the texts again"
            if Path(own) != folder:
                hint = f"pass {printable(own)} as --model, or {hint} with {printable(str(folder))}"
            raise ProjectError(CODE, message, hint, str(folder), EXIT_CHECK_FAILED)


def open_index(folder: Path) -> Index:
    """Open an index. Raises `ProjectError` if it is incomplete, damaged or edited since it was written."""
    files = (INDEX, TEXTS, OFFSETS, EMBEDDINGS)
    if missing := [name for name in files if not (folder / name).is_file()]:
        message = f"the folder has no complete index: {missing[0]} is missing"
        hint = "write an index: neobert-launch encode MODEL TEXTS --index NEW_DIR"
        raise ProjectError(CODE, message, hint, str(folder), EXIT_USAGE)
    content = read_json(folder / INDEX, code=CODE)
    if content.get("schema_version") != SCHEMA_VERSION:
        version = printable(str(content.get("schema_version")))
        raise _damaged_index_error(
            folder / INDEX, f"schema_version is {version} (supported: {SCHEMA_VERSION})"
        )
    try:
        header = parse_as(Header, content)
    except ValueError as error:
        raise _damaged_index_error(folder / INDEX, printable(str(error))) from None
    if not {TEXTS, OFFSETS} <= header.files.keys():
        raise _damaged_index_error(folder / INDEX, f"the key `files` lacks {TEXTS} or {OFFSETS}")
    for name, state in header.files.items():
        file = folder / name
        # The index has the texts, so that their file may be moved; one that was edited has other texts.
        if (name != header.source or file.is_file()) and not state.matches_file(file):
            raise _damaged_index_error(file, "the file was edited after the index was written")
    return Index(folder, header)


def _open_array(file: Path, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> NDArray[Any]:
    """Map an array into memory. None in `shape` matches any size.

    Raises `ProjectError` if the file is unreadable, or the array has another type or shape.
    """
    try:
        found = np.load(file, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged_index_error(file, f"the file cannot be read: {printable(str(error))}") from error
    fits = found.dtype == dtype and len(found.shape) == len(shape) and found.flags.c_contiguous
    if not fits or any(size not in (None, real) for size, real in zip(shape, found.shape, strict=True)):
        expected = f"{dtype} {list(shape)}".replace("None", "any")
        raise _damaged_index_error(
            file, f"the array is {found.dtype} {list(found.shape)}, expected {expected} in C order"
        )
    return cast("NDArray[Any]", found)


def _damaged_index_error(file: Path, message: str) -> ProjectError:
    hint = "encode the texts again: neobert-launch encode MODEL TEXTS --index NEW_DIR"
    return ProjectError(CODE, message, hint, str(file), EXIT_CHECK_FAILED)
