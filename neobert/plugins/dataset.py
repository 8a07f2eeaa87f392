"""Rows of a dataset plug-in, as the splits of a corpus."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from neobert.config.schema import PluginsConfig
from neobert.data.sources.corpus import Splits
from neobert.data.sources.readers import IndexedSource
from neobert.data.sources.rows import Row, RowFormat
from neobert.plugins.kinds import DATASET
from neobert.plugins.loading import Plugin, load_plugins_of_kind

SPLITS = ("train", "validation")


def dataset_plugin_splits(plugins: PluginsConfig, rows: RowFormat) -> Splits | None:
    """Return the splits of a run's dataset plug-in; None if it has no such plug-in. Raises `PluginError`."""
    return next((load_splits(each, rows) for each in load_plugins_of_kind(plugins, DATASET)), None)


def load_splits(plugin: Plugin, rows: RowFormat) -> Splits:
    """Return the splits of a dataset plug-in. Raises `PluginError` without `train` or indexable rows."""
    found = {name: PluggedRows(plugin, name, plugin(name), rows) for name in SPLITS}
    if found["train"].data is None:
        raise plugin.invalid_result_error("returned None for split train")
    return {name: partial(each.source) for name, each in found.items() if each.data is not None}


@dataclass(frozen=True, eq=False)
class PluggedRows:
    """Rows of one split. Raises `PluginError` if they have no length or cannot be indexed."""

    plugin: Plugin
    split: str
    data: Any
    rows: RowFormat

    def __post_init__(self) -> None:
        if self.data is None:
            return
        is_sequence = hasattr(self.data, "__len__") and hasattr(self.data, "__getitem__")
        if not is_sequence or isinstance(self.data, str | bytes | Mapping):
            kind = type(self.data).__name__
            raise self.plugin.invalid_result_error(
                f"returned {kind} for split {self.split}, not a sequence: rows that cannot be indexed "
                "cannot be compared when a run is resumed"
            )

    @cached_property
    def length(self) -> int:
        """Number of rows."""
        return int(self.plugin.call_guarded(len, self.data))

    def row(self, index: int) -> Mapping[str, Any]:
        """Return a row, with the columns of the task. Raises `PluginError` unless it is a mapping."""
        row = self.plugin.call_guarded(self.data.__getitem__, index)
        if not isinstance(row, Mapping):
            raise self.plugin.invalid_result_error(
                f"returned {type(row).__name__} as a row, not a dictionary"
            )
        return row

    def source(self) -> IndexedSource:
        """Return the rows as a source of text."""
        label = f"{self.plugin.label} ({self.split})"
        columns = self.rows.columns(self.row(0) if self.length else {}, label)

        def fetch(start: int, stop: int) -> Sequence[Row]:
            return [
                self.rows.row(self.row(index), columns, f"{label}, row {index + 1}")
                for index in range(start, stop)
            ]

        return IndexedSource(
            label, fetch, lambda: self.length, lambda: self.identity, self.rows, ", ".join(columns.values())
        )

    @cached_property
    def identity(self) -> list[Any]:
        """Number of rows and a digest of their content, since a function may read other files."""
        digest = hashlib.blake2b(digest_size=16)
        for index in range(self.length):
            digest.update(serialize_row(self.row(index)))
        return [self.length, digest.hexdigest()]


def serialize_row(row: Mapping[str, Any]) -> bytes:
    """Serialize a row to JSON, the same in every process: keys sorted, other types such as dates as text."""
    return json.dumps(dict(row), sort_keys=True, default=str).encode("ascii") + b"\n"
