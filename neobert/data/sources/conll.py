"""Rows of CoNLL files: one word with its label per line, a blank line between texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from neobert.data.sources.lines import MAX_LINE_CHARACTERS, LinePiece, whole_lines
from neobert.data.sources.unreadable import unreadable_error
from neobert.plurals import counted

WORDS, LABELS = "tokens", "tags"
DOCUMENT_START = "-DOCSTART-"
_HINT = "write a word and its label per line, separated by a tab or by spaces, and a blank line between texts"
_COMMENTS = "remove the comment lines, such as: # sent_id = 1"
_NUMBERED = "set dataset.column_names to the names of all columns, or keep two, such as with: cut -f2,3"
_SPACE = re.compile("[ \t]+")


def conll_rows(
    pieces: Iterator[LinePiece], path: Path, names: Sequence[str] | None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (location, lists of values by column name) per text; document separators are skipped.

    Args:
        names: columns of a line; None: the first column is the word (`tokens`), the last its label (`tags`).

    Raises DAT001 for a line with the wrong number of columns, numbers of words in the first column, and a
    text that is too long.
    """
    lines: list[list[str]] = []
    location, size = str(path), 0
    width = None if names is None else len(names)
    for number, line in whole_lines(pieces, path):
        line = line.rstrip("\r\n")
        if not line.strip(" \t") or _SPACE.split(line, 1)[0] == DOCUMENT_START:
            if lines:
                yield location, _columns_by_name(lines, names, location)
            lines, size = [], 0
            continue
        fields = line.split("\t") if "\t" in line else _SPACE.split(line.strip(" "))
        width = width or len(fields)
        if len(fields) != width or width < 2:
            # The first line of the file sets the number of columns: a comment there fails the next line.
            follows_comment = bool(lines) and all(each[0].startswith("#") for each in lines)
            if line.startswith("#") or follows_comment:
                at = location if follows_comment else f"{path}:{number}"
                raise unreadable_error(at, "is a comment, not a word with its label", _COMMENTS)
            expected = f"{width} expected" if width > 1 else "a word and its label expected"
            raise unreadable_error(
                f"{path}:{number}", f"has {counted(len(fields), 'column')} ({expected})", _HINT
            )
        size += len(line)
        if size > MAX_LINE_CHARACTERS:
            message = f"the text is longer than {MAX_LINE_CHARACTERS:,} characters"
            raise unreadable_error(location, message, "separate texts by blank lines")
        location = location if lines else f"{path}:{number}"
        lines.append(fields)
    if lines:
        yield location, _columns_by_name(lines, names, location)


def _columns_by_name(
    lines: list[list[str]], names: Sequence[str] | None, location: str
) -> dict[str, list[str]]:
    if names is not None:
        return {name: [fields[at] for fields in lines] for at, name in enumerate(names)}
    words = [fields[0] for fields in lines]
    if len(words) > 2 < len(lines[0]) and words == [str(number) for number in range(1, len(words) + 1)]:
        raise unreadable_error(
            location, "has word numbers in its first column, as CoNLL-U and GermEval do", _NUMBERED
        )
    return {WORDS: words, LABELS: [fields[-1] for fields in lines]}
