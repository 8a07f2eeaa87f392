"""Availability of data, tokenizer and initial weights, locally and on the Hub."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from launcher.io.files import expand_user, why_unreadable
from launcher.probes.disk import why_not_writable
from launcher.probes.probe import IncompleteError, Subject, nearest_existing_path
from launcher.probes.weights import weights_facts
from neobert.config import from_dict, to_dict
from neobert.config.corpora import PLUGGED, corpus_paths, is_on_hub, is_remote, list_corpora
from neobert.config.schema import DatasetConfig, TokenizerConfig
from neobert.data.sources.file_listing import resolve_paths
from neobert.data.sources.prepared import joined_folder
from neobert.errors import ProjectError, prefix_place
from neobert.families.table import initial_weights
from neobert.runfiles.cache_folder import cache_folder
from neobert.runfiles.continuation import checkpoint_config, find_run_checkpoint, with_located_text
from neobert.runfiles.part_faults import read_prepared_parts
from neobert.runfiles.prepared_parts import MANIFEST
from validators.facts import PLUGGED_SOURCE
from validators.facts_host import DataFacts

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
Kind = Literal["datasets", "models"]
OFFLINE_SWITCHES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
TRUE = ("1", "true", "yes", "on")
TIMEOUT_S = 5.0
SMALL_TEXT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class TextLocation:
    """Data at the configured location; fields as in `DataFacts`."""

    source: str
    exists: bool
    is_readable: bool
    num_files: int = 0
    size_bytes: int = 0
    reason: str = ""


def probe_data(subject: Subject) -> DataFacts:
    """Check whether local files are readable and Hub names available, for text, tokenizer and weights."""
    text = _combine_texts([_locate_text(each) for each in list_corpora(subject.config.dataset)])
    name, has_tokenizer = _locate_tokenizer(subject.config.tokenizer)
    weights = initial_weights(subject.config)
    cache_reason = _why_no_cache(subject.config.dataset)
    return DataFacts(
        **asdict(text),
        tokenizer=name,
        tokenizer_exists=has_tokenizer,
        cache_reason=cache_reason,
        source_reason=_why_no_source(subject.config.trainer.eval_source_path),
        **({} if cache_reason else _unjoined_parts(subject.config.dataset)),
        **({} if weights is None else weights_facts(subject, weights)),
    )


def is_small_text(dataset: DatasetConfig) -> bool:
    """Return whether the text is local, not streamed and at most 1 GiB, and so prepared in about a minute."""
    if is_remote(dataset):
        return False
    texts = [_locate_text(each) for each in list_corpora(dataset) if not is_on_hub(each)]
    is_local = len(texts) == len(list_corpora(dataset)) and not dataset.streaming
    return is_local and sum(text.size_bytes for text in texts) <= SMALL_TEXT_BYTES


def _locate_text(dataset: DatasetConfig) -> TextLocation:
    if is_remote(dataset):
        return _hub_text(str(dataset.path), is_available=True, reason="")
    if dataset.path is not None:
        return _check_local_text(corpus_paths(dataset))
    name = dataset.name or ""
    if not is_on_hub(dataset):
        return _hub_text(name, is_available=bool(name), reason="")
    is_there = is_available("datasets", name, os.environ)
    return _hub_text(
        name, is_available=is_there, reason="neither in the local cache nor available from the Hub"
    )


def _hub_text(name: str, *, is_available: bool, reason: str) -> TextLocation:
    return TextLocation(
        name, exists=is_available, is_readable=is_available, reason="" if is_available else reason
    )


def _combine_texts(texts: Sequence[TextLocation]) -> TextLocation:
    """Sum up the corpora of a mixture, or return the first corpus that is unreadable or empty."""
    for text in texts:
        if _why_unreadable(text):
            return text
    return TextLocation(
        ", ".join(text.source for text in texts),
        exists=True,
        is_readable=True,
        num_files=sum(text.num_files for text in texts),
        size_bytes=sum(text.size_bytes for text in texts),
    )


def _why_unreadable(text: TextLocation) -> str:
    """Return the place and the reason why a text is unreadable or empty; empty if it is neither."""
    is_empty = text.num_files > 0 and not text.size_bytes
    if text.is_readable and not text.reason and not is_empty:
        return ""
    return prefix_place(text.source, text.reason or "contains no text")


def _why_no_cache(dataset: DatasetConfig) -> str:
    try:
        folder = cache_folder(dataset)
    except ProjectError as error:
        return error.message
    reason = why_not_writable(nearest_existing_path(folder))
    return "" if reason and _holds_prepared_text(dataset, folder) else reason


def _holds_prepared_text(dataset: DatasetConfig, cache: Path) -> bool:
    """Return whether the text may be prepared already: then it is only read, perhaps from another user."""
    with suppress(OSError):
        # os.path.exists, unlike Path.exists, does not raise for a folder that only its owner may enter.
        return joined_folder(dataset) is not None or any(
            os.path.exists(folder / MANIFEST) for folder in (cache, *cache.iterdir())
        )
    return False


def _unjoined_parts(dataset: DatasetConfig) -> dict[str, Any]:
    """Return the facts about unjoined parts in `dataset.cache_dir`; empty if there are none."""
    if dataset.cache_dir is None:
        return {}
    folder = expand_user(dataset.cache_dir)
    found = None if (folder / MANIFEST).exists() else read_prepared_parts(folder)
    if found is None:
        return {}
    return {
        "unjoined_parts": len(found.manifests) + len(found.missing),
        "missing_parts": found.missing,
        "part_faults": found.faults,
    }


def _why_no_source(path: str | None) -> str:
    if path is None:
        return ""
    return _why_unreadable(_check_local_text((path,))) or _why_no_text_of_run(Path(path))


def _why_no_text_of_run(place: Path) -> str:
    """Return the first reason why the text of a run or checkpoint cannot be read; empty for other places."""
    with suppress(ProjectError):  # the trainer refuses a checkpoint that cannot be read
        if (folder := find_run_checkpoint(place)) is not None:
            config = with_located_text(to_dict(checkpoint_config(folder)), folder)
            return why_no_text(list_corpora(from_dict(config).dataset))
    return ""


def why_no_text(corpora: Iterable[DatasetConfig]) -> str:
    """Return the first reason why the corpora of another run cannot be read; empty if they can."""
    for corpus in corpora:
        if corpus.name == PLUGGED:
            return PLUGGED_SOURCE
        if reason := _why_unreadable(_locate_text(corpus)):
            return reason
    return ""


def _check_local_text(paths: Sequence[str]) -> TextLocation:
    try:
        places = resolve_paths(paths)
    except ProjectError as error:
        return TextLocation(error.place, exists=False, is_readable=False, reason=error.message)
    texts = [_check_local_path(place.path) for place in places]
    # Empty files that a pattern matches are not read; a path that is named must hold text.
    needed = [
        text
        for place, text in zip(places, texts, strict=True)
        if place.is_named or text.size_bytes or not text.is_readable
    ]
    return _combine_texts(needed or texts)


def _check_local_path(path: Path) -> TextLocation:
    if path.exists() and not (path.is_file() or path.is_dir()):  # not empty: DAT032 says what it is
        return TextLocation(str(path), exists=True, is_readable=True, reason="not a regular file")
    num_files, size_bytes, unreadable = 0, 0, ""
    for file in _files_below(path):
        num_files += 1
        size_bytes += file.stat().st_size
        unreadable = unreadable or why_unreadable(file)
    is_readable = num_files > 0 and not unreadable
    return TextLocation(
        str(path),
        exists=True,
        is_readable=is_readable,
        num_files=num_files,
        size_bytes=size_bytes,
        reason=unreadable,
    )


def _files_below(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder, name)
            if not name.startswith(".") and file.is_file():
                yield file


def _locate_tokenizer(tokenizer: TokenizerConfig) -> tuple[str, bool]:
    """Return the path or name of the tokenizer and its availability; ("", True) if it will be trained."""
    if tokenizer.path is not None:
        return str(expand_user(tokenizer.path)), has_tokenizer(tokenizer.path)
    if tokenizer.name is not None:
        return tokenizer.name, is_available("models", tokenizer.name, os.environ)
    return "", True


def has_tokenizer(place: str) -> bool:
    """Return whether the path is a file or a folder with files of a tokenizer."""
    path = expand_user(place)
    return path.is_file() or any((path / name).is_file() for name in TOKENIZER_FILES)


def is_available(kind: Kind, name: str, environment: Mapping[str, str]) -> bool:
    """Return whether a model or dataset is in the local cache or can be downloaded from the Hub.

    Raises IncompleteError if the Hub did not respond or offline mode is on.
    """
    if any(folder.is_dir() for folder in _cached_snapshots(kind, name, environment)):
        return True
    if any(environment.get(switch, "").lower() in TRUE for switch in OFFLINE_SWITCHES):
        raise IncompleteError(f"{name} is not in the local cache, and offline mode prevents a download")
    from huggingface_hub.constants import ENDPOINT

    endpoint = environment.get("HF_ENDPOINT", ENDPOINT).rstrip("/")
    return _is_on_hub_server(f"{endpoint}/api/{kind}/{name}", environment.get("HF_TOKEN", ""))


def _cached_snapshots(kind: Kind, name: str, environment: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environment.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface"))
    hub = Path(environment.get("HF_HUB_CACHE") or home / "hub")
    yield hub / f"{kind}--{name.replace('/', '--')}" / "snapshots"
    if kind == "datasets":
        prepared = Path(environment.get("HF_DATASETS_CACHE") or home / "datasets")
        yield prepared / name.replace("/", "___")


def _is_on_hub_server(url: str, token: str) -> bool:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    request = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {}, method="HEAD")
    try:
        with urlopen(request, timeout=TIMEOUT_S):
            return True
    except HTTPError as error:
        if error.code in (401, 403, 404):
            return False
        raise IncompleteError(f"{url} returned HTTP {error.code}") from None
    except (OSError, ValueError) as error:
        raise IncompleteError(f"no response from {url}: {getattr(error, 'reason', error)}") from None
