"""Datasets of the `datasets` library: saved folders, Hub datasets and streamed Hub datasets.

A single connection attempt tests whether the Hub is reachable, because its client would retry a dozen times.
"""

from __future__ import annotations

import copy
import logging
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants

from neobert.config.schema import DatasetConfig
from neobert.data.sources.readers import IndexedSource, Reader, State, TextSource
from neobert.data.sources.rows import Row, RowFormat
from neobert.errors import ProjectError, first_line
from neobert.plurals import listed

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

Result = TypeVar("Result")
CUT_OFF = "no connection to the Hub: set dataset.path to a file or folder, and dataset.name to null"
CHECK_STREAM = "check dataset.name, dataset.config and the connection"
CONNECT_TIMEOUT_S = 5.0
PORTS = {"http": 80, "https": 443}


def is_unreachable() -> bool:
    """Return whether the Hub is unreachable or in offline mode. Behind a proxy, only offline mode counts."""
    server = urlsplit(constants.ENDPOINT)
    if constants.HF_HUB_OFFLINE or server.scheme in getproxies():
        return constants.HF_HUB_OFFLINE
    location = (server.hostname or "", server.port or PORTS.get(server.scheme, 443))
    try:
        socket.create_connection(location, CONNECT_TIMEOUT_S).close()
    except OSError:
        return True
    return False


@contextmanager
def suppress_logs(library: str = "huggingface_hub") -> Iterator[None]:
    """Suppress a library's log messages below ERROR, by default the Hub client's messages about retries."""
    logger = logging.getLogger(library)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def saved_splits(path: Path, rows: RowFormat) -> dict[str, Callable[[], TextSource]]:
    """Return a function that opens each split of a `save_to_disk` folder, by split name.

    A dataset without splits becomes the split `train`. Raises DAT001 if the folder cannot be loaded.
    """
    datasets = _import_datasets(str(path))
    loaded = _call_datasets(lambda: datasets.load_from_disk(str(path)), str(path), "check dataset.path")
    splits = dict(loaded) if isinstance(loaded, datasets.DatasetDict) else {"train": loaded}
    return {
        str(name): partial(_indexed_source, split, f"{path} ({name})", rows) for name, split in splits.items()
    }


def hub_splits(config: DatasetConfig, rows: RowFormat) -> dict[str, Callable[[], TextSource]]:
    """Return a function that opens each split of a Hub dataset, by split name.

    The splits are streams if `dataset.streaming` is set. Raises DAT001 if the dataset cannot be loaded.
    """
    name = str(config.name)
    datasets = _import_datasets(name)
    location = f"{name}/{config.config}" if config.config else name
    location = f"{location}@{config.revision}" if config.revision else location
    with _offline_if_unreachable(name) as is_cut_off:
        loaded: Any = _call_datasets(
            lambda: datasets.load_dataset(
                name, config.config, revision=config.revision, streaming=config.streaming
            ),
            location,
            CUT_OFF if is_cut_off else "check dataset.name, dataset.config and dataset.revision",
        )
    make: Callable[..., TextSource] = _stream_source if config.streaming else _indexed_source
    return {str(split): partial(make, data, f"{location} ({split})", rows) for split, data in loaded.items()}


def hub_tables(name: str, configurations: Collection[str], hint: str) -> Mapping[str, Dataset]:
    """Return the splits by name of a dataset's only configuration, or of one named in `configurations`.

    `name` may also be the path of a local copy of the repository. Raises DAT001, with a hint that ends with
    `hint`, if the dataset cannot be loaded, or has several configurations, none of them in `configurations`.
    """
    datasets = _import_datasets(name)
    with _offline_if_unreachable(name) as is_cut_off:
        reason = "no such local path and no connection to the Hub" if is_cut_off else "check the name"
        hint = f"{reason}: {hint}"
        offered = _call_datasets(lambda: datasets.get_dataset_config_names(name), name, hint)
        chosen = [each for each in offered if each.lower() in configurations] or offered
        if len(offered) > 1 and chosen is offered:
            message = f"has no configuration {' or '.join(configurations)}, only {listed(offered)}"
            raise ProjectError("DAT001", message, hint, name)
        loaded: Any = _call_datasets(lambda: datasets.load_dataset(name, chosen[0]), name, hint)
    return {str(split): data for split, data in loaded.items()}


def _import_datasets(location: str) -> Any:
    """Import the library `datasets`, which runs on other text do not need. Raises DAT001 if that fails."""
    try:
        import datasets
    except ImportError as error:
        message = f"the dataset cannot be opened: {first_line(error)}"
        raise ProjectError("DAT001", message, "pip install 'datasets>=5.2'", location) from error
    return datasets


@contextmanager
def _offline_if_unreachable(name: str) -> Iterator[bool]:
    """Make `datasets` use only its cache if the Hub is unreachable; yield True in that case."""
    from datasets import config as datasets_config

    is_cut_off = not Path(name).exists() and is_unreachable()
    before = datasets_config.HF_HUB_OFFLINE
    datasets_config.HF_HUB_OFFLINE = before or is_cut_off  # read at each load
    try:
        with suppress_logs():
            yield is_cut_off
    finally:
        datasets_config.HF_HUB_OFFLINE = before


def _indexed_source(data: Dataset, label: str, rows: RowFormat) -> TextSource:
    columns = rows.columns(dict.fromkeys(data.column_names), label)
    column = ", ".join(columns.values())

    def fetch(start: int, stop: int) -> list[Row]:
        values = data[start:stop]
        cells = zip(*(values[name] for name in columns.values()), strict=True)
        return [
            rows.row(dict(zip(columns.values(), each, strict=True)), columns, f"{label}, row {number}")
            for number, each in enumerate(cells, start + 1)
        ]

    return IndexedSource(label, fetch, lambda: len(data), lambda: [data._fingerprint, column], rows, column)


def _stream_source(data: IterableDataset, label: str, rows: RowFormat) -> TextSource:
    names = data.column_names or _call_datasets(lambda: list(next(iter(data), {})), label, CHECK_STREAM)
    return StreamSource(label, data, rows, rows.columns(dict.fromkeys(names), label))


@dataclass(frozen=True)
class StreamSource:
    """A streamed dataset of unknown length, whose positions are state dicts of the `datasets` library."""

    label: str
    data: IterableDataset
    rows: RowFormat
    columns: Mapping[str, str]

    @property
    def column(self) -> str:
        """Names of the columns that are read."""
        return ", ".join(self.columns.values())

    def open(self, state: State | None = None) -> Reader:
        """Start reading on a copy of the stream, so that readers do not advance each other."""
        stream = self.data.with_format(None)
        if state is not None:
            stream.load_state_dict(copy.deepcopy(state))
        return _StreamReader(self, stream)

    def count(self) -> None:
        """Return None: the length of a stream is unknown."""

    def identity(self) -> Any:
        """Return the label and columns of the stream; its content is unknown."""
        return [self.label, self.column]


class _StreamReader(Reader):
    def __init__(self, source: StreamSource, stream: IterableDataset) -> None:
        self._source, self._stream, self._rows = source, stream, iter(stream)

    def __next__(self) -> Row:
        values, source = next(self._rows), self._source
        given = {name: values.get(name) for name in source.columns.values()}
        return source.rows.row(given, source.columns, source.label)

    def state(self) -> State:
        state: State = self._stream.state_dict()
        return state


def _call_datasets(action: Callable[[], Result], location: str, hint: str) -> Result:
    """Return the result of `action`; raise DAT001 for errors of `datasets` about a name or connection."""
    from datasets.exceptions import DatasetsError

    try:
        return action()
    except (OSError, ValueError, DatasetsError, RuntimeError, NotImplementedError) as error:
        message = f"the dataset cannot be opened: {first_line(error)}"
        raise ProjectError("DAT001", message, hint, location) from error
