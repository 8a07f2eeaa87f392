"""Preview of the text that a new run file names, and warnings about it."""

from __future__ import annotations

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from contextlib import suppress
from pathlib import Path
from shlex import quote

from launcher.terminal import console
from neobert.config.corpora import LINES_TO_DOCUMENTS
from neobert.config.schema import DatasetConfig
from neobert.config.text_formats import MARKDOWN, TEXT
from neobert.data.sources.file_listing import is_saved_dataset
from neobert.data.sources.preview import Preview, group_by_use, preview_local_text
from neobert.data.sources.rows import IN_RUN_FILE, TEXT_SETTING, RowFormat, text_rows
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.plurals import listed
from neobert.printable import printable
from neobert.tasks.table_files import split_files

BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")
HEAD_BYTES = 2**20
LONG_DOCUMENT = 2**17
"""Size in bytes above which a file in a folder is rarely a single document."""
PAGE_WIDTH = 100
"""Maximum mean length of lines that are wrapped for a page, in characters."""
UTF_16 = (BOM_UTF16_LE, BOM_UTF16_BE)


def preview_text(text: Path, column: str | None, *, document_per_line: bool = False) -> Preview:
    """Preview the text, which a table has in `column`. Raises ProjectError if no run could read it."""
    dataset = DatasetConfig(path=str(text), text_column=column, document_per_line=document_per_line)
    found = preview_local_text(dataset, text_rows(dataset))
    if found.error is not None:
        raise as_text_option_error(found.error)
    return found


def preview_by_line(text: Path, preview: Preview) -> Preview | None:
    """Preview a text of one document with a document per line; None if its lines are short, as on a page."""
    if preview.documents != 1 or {*preview.formats} - {TEXT, *MARKDOWN}:
        return None
    by_line = preview_text(text, None, document_per_line=True)
    lines = by_line.sample
    return by_line if len(lines) > 1 and sum(map(len, lines)) > PAGE_WIDTH * len(lines) else None


def as_text_option_error(error: ProjectError) -> ProjectError:
    """Rephrase an error about keys of the text as one about options."""
    hint = error.hint.replace("set dataset.path to", "set --text to")
    hint = hint.replace(f"set {TEXT_SETTING} to", f"set --{TEXT_SETTING} to")
    hint = hint.replace(IN_RUN_FILE, "")
    return ProjectError("unusable-path", error.message, hint, error.place, EXIT_USAGE)


def warn_of_skipped_files(preview: Preview) -> None:
    """Log warnings about files that are not read."""
    for each in preview.left_out:
        if each.reason:
            warn(f"not read: {each.num_files:,} x {each.kind} ({each.example}: {each.reason})", each.hint)


def notes_on_splits(text: Path | None, rows: RowFormat) -> tuple[str, ...]:
    """Return notes on files or splits whose names make them evaluation text, and on those not read."""
    found = list[str]()
    with suppress(ProjectError, OSError):
        files = () if text is None else split_files(text, rows)
        kind = "files" if text is None or not is_saved_dataset(text) else "splits"
        _, evaluation, unread = group_by_use(files, DatasetConfig(path=str(text))) if files else ([], [], [])
        if evaluation:
            names = listed([file.name for file in evaluation], 3)
            found.append(f"{kind} used for evaluation, because of their names: {names}")
        found += [
            f"{kind} not read, because of their names: {each.example} ({each.num_files:,} x {each.kind})"
            for each in unread
        ]
    return tuple(map(printable, found))


def warn_of_one_document(path: str) -> None:
    """Log a warning if a .txt file, or a long .txt file in a folder, has no blank line in its first MiB.

    It is then a single document, and all of it is either trained on or held out.
    """
    file = next(filter(_is_one_document, _text_files(Path(path))), None)
    if file is not None:
        hint = LINES_TO_DOCUMENTS.format(quote(str(file)))
        warn(f"{file} has no blank line, so it is one document", hint)


def _text_files(path: Path) -> list[Path]:
    """Return the .txt file at `path`, or the .txt files of `LONG_DOCUMENT` bytes or more in a folder.

    Empty for a file of another format.
    """
    if path.is_dir():
        files = sorted(each for each in path.glob(f"*{TEXT}") if each.is_file())
        return [each for each in files if each.stat().st_size >= LONG_DOCUMENT]
    return [path] if path.suffix.lower() == TEXT and path.is_file() else []


def _is_one_document(file: Path) -> bool:
    """Return whether a file's first MiB has no blank line; False for UTF-16, which the reader rejects."""
    with file.open("rb") as handle:
        head = handle.read(HEAD_BYTES)
    # As the reader of the data does: without any LF, lines end with CR.
    lines = head if b"\n" in head else head.replace(b"\r", b"\n")
    return not (head.startswith(UTF_16) or BLANK_LINE.search(lines))


def warn(message: str, hint: str) -> None:
    """Print a warning and its hint to standard error."""
    console.log(printable(f"warning: {message}"))
    console.log(printable(f"  = hint: {hint}"))
