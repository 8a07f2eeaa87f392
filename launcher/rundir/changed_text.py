"""Comparison of a run's text with the files that it was trained on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.rundir.records import read_json
from neobert.config.corpora import corpus_paths, list_corpora
from neobert.config.schema import RunConfig
from neobert.data.sources.file_digests import FOLDER, FileDigests
from neobert.data.sources.file_listing import resolve_paths
from neobert.data.sources.file_selection import select_files
from neobert.errors import ProjectError
from neobert.runfiles.cache_folder import cache_folder
from neobert.runfiles.checkpoint.folders import latest_checkpoint
from neobert.runfiles.checkpoint.state import DATA_FINGERPRINT, STATE, STATE_DIR
from neobert.runfiles.run_dir import CHECKPOINTS, MANIFEST
from neobert.tasks.specs import spec_of

Described = tuple[str, int, str]
"""Name, size in bytes and digest of a file."""


def changed_files(config: RunConfig, folder: Path) -> list[str]:
    """Return the names of the local files that were changed, added or removed since the run was trained.

    Empty if that is unknown: for text on the Hub, streams and mixtures, for prepared data that is no longer
    in the cache, and for text that cannot be read.
    """
    with suppress(ProjectError):
        cache = cache_folder(config.dataset)
        # Equal text from several paths is prepared once for each, with the same fingerprint.
        changes = [_changed_names(config, cache, files) for files in _trained_files(cache, folder)]
        return min(changes, key=len, default=[])
    return []


def _changed_names(config: RunConfig, cache: Path, trained_on: set[Described]) -> list[str]:
    names = {name for name, *_ in trained_on}
    return sorted({name for name, *_ in trained_on ^ {*_current_files(config, cache, names)}})


def _trained_files(cache: Path, folder: Path) -> Iterator[set[Described]]:
    """Yield the files of prepared data with the fingerprint of the run's newest checkpoint."""
    checkpoint = latest_checkpoint(folder / CHECKPOINTS)
    state = {} if checkpoint is None else read_json(checkpoint / STATE_DIR / STATE)
    identity = state.get("identity")
    fingerprint = identity.get(DATA_FINGERPRINT) if isinstance(identity, dict) else None
    for manifest in (cache / MANIFEST, *cache.glob(f"*/{MANIFEST}")) if fingerprint else ():
        prepared = read_json(manifest)
        if prepared.get("fingerprint") == fingerprint and (
            files := {*_described_files(prepared.get("request"))}
        ):
            yield files


def _described_files(described: Any) -> Iterator[Described]:
    """Yield the files in the nested description of a text."""
    match described:
        case [str(name), int(size), str(digest)]:
            yield name, size, digest
        case dict() | list():
            for each in described.values() if isinstance(described, dict) else described:
                yield from _described_files(each)


def _current_files(config: RunConfig, cache: Path, names: set[str]) -> Iterator[Described]:
    """Yield the files for each split that has a file with one of these names. Raises `ProjectError`."""
    digests = FileDigests(cache / FOLDER)
    rows = spec_of(config).rows(config)
    for corpus in list_corpora(config.dataset):
        files = select_files(
            resolve_paths(corpus_paths(corpus)), rows.with_text_column(corpus.text_column)
        ).files
        read = {file.split for file in files if file.name in names}
        for file in files:
            if file.split in read:
                size, digest = digests.describe(file.path)
                yield file.name, size, digest
