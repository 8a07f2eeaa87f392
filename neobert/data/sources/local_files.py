"""Files and folders as splits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial

from neobert.data.sources.file_digests import DescribeFile
from neobert.data.sources.file_selection import TextFile, select_files
from neobert.data.sources.path_patterns import places_of
from neobert.data.sources.readers import FileSource, TextSource
from neobert.data.sources.rows import RowFormat
from neobert.plurals import counted

log = logging.getLogger(__name__)


@cache
def _warn_once(message: str) -> None:
    """Log a warning, once per process: a text is opened more than once."""
    log.warning("%s", message)


def local_splits(
    paths: Sequence[str], rows: RowFormat, describe: DescribeFile
) -> dict[str, Callable[[], TextSource]]:
    """Return a function that opens each split of files and folders, by split name.

    Raises DAT001 without a readable file, DAT004 for an empty file.
    """
    places = places_of(paths)
    selection = select_files(places, rows)
    for each in selection.left_out.values():
        if each.reason:
            _warn_once(str(each))
    label = ", ".join(paths)
    if len(places) == 1 and places[0].is_named and not places[0].path.is_dir():
        (file,) = selection.files
        return {file.split: lambda: FileSource(label, (file.path,), (file.name,), rows, describe)}
    members: dict[str, list[TextFile]] = {}
    for file in selection.files:
        members.setdefault(file.split, []).append(file)
    not_read = f"; not read: {others}" if (others := selection.left_out_text()) else ""
    return {
        name: partial(
            FileSource,
            f"{label} ({name}, {counted(len(files), 'file')}{not_read})",
            tuple(file.path for file in files),
            tuple(file.name for file in files),
            rows,
            describe,
        )
        for name, files in sorted(members.items())
    }
