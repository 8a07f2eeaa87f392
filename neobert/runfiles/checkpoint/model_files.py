"""Model files of a folder: their digests, and their verification against the manifest of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from neobert.printable import printable
from neobert.runfiles.checkpoint.manifest import FILE_NAME, file_sha256, read_content, verify_file
from neobert.runfiles.checkpoint.refusal import refuse_strays, unusable_checkpoint_error
from neobert.runfiles.run_dir import CONFIG

SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".jinja")
"""Endings of weights, their index, config and tokenizer files; code and the model card are not read."""
WEIGHT_FILES = "*.safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)
SETTINGS = (
    CONFIG,
    "generation_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
"""Files with settings of the model, of generated text and, from sentence-transformers, of embeddings."""
UNREADABLE_HINT = "give this user read permission, or use another checkpoint by its path"

_sums: dict[tuple[object, ...], str] = {}


def model_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that determines the outputs of a model, by its path in the folder.

    Raises `ProjectError` CKP007 for a file that cannot be read, such as a link to a file that was deleted.
    """
    with _convert_read_errors(folder):
        files = [path for path in folder.iterdir() if _determines_outputs(path.name)]
        files += folder.glob(f"*/{CONFIG}")  # modules of sentence-transformers
        return {path.relative_to(folder).as_posix(): _sha256_once(path) for path in sorted(files)}


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 sums of a folder's *.safetensors files, sorted by name, separated by spaces.

    Raises `ProjectError` CKP007 for a file that cannot be read.
    """
    with _convert_read_errors(folder):
        return " ".join(map(_sha256_once, sorted(folder.glob(WEIGHT_FILES))))


def _determines_outputs(name: str) -> bool:
    return name in (*SETTINGS, *TOKENIZER_FILES) or name.endswith((".safetensors", INDEX_SUFFIX, ".model"))


def verify_model(folder: Path) -> None:
    """Verify weights, config and tokenizer files of a checkpoint against its manifest.

    Does nothing for a folder without a manifest. Missing files are left to their readers, and the training
    state is ignored. A process reads an unchanged file only once. Raises `ProjectError` CKP007 if a file or
    the manifest is damaged or may not be read, and `StrayEntryError` for weights, settings or tokenizer files
    that the manifest does not list: a reader would use them in place of the saved ones.
    """
    if not os.path.lexists(folder / FILE_NAME):
        return
    with _convert_read_errors(folder):
        listed = _listed_model_files(folder)
        present = {path.name for path in folder.iterdir() if _determines_outputs(path.name)}
        refuse_strays(folder, present, listed)
        for name, expected in listed.items():
            with suppress(FileNotFoundError):  # its reader reports it
                _verify_once(folder, name, expected)


def model_size_bytes(folder: Path) -> int:
    """Return the size of the files that `verify_model` reads, as the manifest declares it.

    It is 0 without a manifest. Raises `ProjectError` CKP007 for a damaged or unreadable manifest.
    """
    with _convert_read_errors(folder):
        return sum(expected["size"] for expected in _listed_model_files(folder).values())


@contextmanager
def _convert_read_errors(folder: Path) -> Iterator[None]:
    """Convert an `OSError` in the `with` block to a `ProjectError` CKP007."""
    try:
        yield
    except PermissionError as error:
        name = Path(error.filename or FILE_NAME).name
        message = f"this user has no read permission for {printable(name)}"
        raise unusable_checkpoint_error(folder, message, UNREADABLE_HINT) from error
    except OSError as error:
        raise unusable_checkpoint_error(folder, f"cannot be read: {printable(str(error))}") from error


def _listed_model_files(folder: Path) -> Mapping[str, Any]:
    """Return the size and digest of each model file in the manifest; empty without a manifest."""
    if not os.path.lexists(folder / FILE_NAME):
        return {}
    files = read_content(folder)["files"]
    return {name: each for name, each in files.items() if _is_model_file(name)}


def _is_model_file(name: str) -> bool:
    """Return whether loading a model reads this file, including sentence-transformers modules."""
    return name.endswith(SUFFIXES) and ("/" not in name or name.endswith(f"/{CONFIG}"))


def _file_state(path: Path) -> tuple[object, ...]:
    """Return device, inode, size and ctime, which change with every write of a file."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns


def _verify_once(folder: Path, name: str, expected: Mapping[str, Any]) -> None:
    """Verify a file against the manifest; skipped if this process has verified it since its last change."""
    state = _file_state(folder / name)
    if _sums.get(state) != expected["sha256"]:
        verify_file(folder, name, expected)
        _sums[state] = expected["sha256"]


def _sha256_once(path: Path) -> str:
    """Return the SHA-256 of a file, cached until the file changes."""
    state = _file_state(path)
    if state not in _sums:
        _sums[state] = file_sha256(path)
    return _sums[state]
