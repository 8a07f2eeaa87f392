"""TOML reader. tomllib keeps no line numbers, so a scan of the source finds them.

The scan recognizes headers, dotted and quoted keys, and multi-line strings and arrays. A key inside an inline
table or a list gets the position of the enclosing key.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from neobert.config.nodes import MAX_DEPTH, Flaw, Node, Origin, OriginKind, Path, UnreadableError, build

NAME = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
DOTTED = rf"{NAME}(?:\s*\.\s*{NAME})*"
HEADER = re.compile(rf"\s*(\[\[?)\s*({DOTTED})\s*\]")
KEY = re.compile(rf"\s*({DOTTED})\s*=\s*")
MAX_PARTS = 4 * MAX_DEPTH
TOO_DEEP = re.compile(rf"^[ \t]*+(?:\[+[ \t]*+)?{NAME}(?:[ \t]*\.[ \t]*{NAME}){{{MAX_PARTS}}}", re.MULTILINE)
NO_BRACKETS = re.compile(r"""#.*|"(?:\\.|[^"\\])*+"|'[^']*+'|\\.""")
PLACE = re.compile(r"\(at line (\d+), column (\d+)\)")
TWICE = ("Cannot overwrite a value", "Cannot declare", "Cannot mutate")
DELIMITERS = ('"""', "'''")

Places = dict[Path, tuple[int, int, int]]


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML to plain values. Raises ValueError, also for a huge integer, and RecursionError.

    Long dotted keys are refused: tomllib takes time in proportion to their length for each key below.
    """
    if TOO_DEEP.search(text):
        raise ValueError("keys are nested too deeply")
    return tomllib.loads(text)


def read_toml(text: str, file: str, kind: OriginKind) -> tuple[Node, list[Flaw]]:
    """Parse TOML to a tree with file positions, and a list of errors. Raises UnreadableError."""
    try:
        values = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise _unreadable_error(str(error)) from None
    except (ValueError, RecursionError):
        raise UnreadableError("TOML: a value is too large or nested too deeply") from None
    places = _scan_key_positions(text)
    flaws: list[Flaw] = []

    def locate(path: Path) -> tuple[Origin, Origin]:
        while path and path not in places:
            path = path[:-1]
        line, key_column, value_column = places.get(path, (1, 1, 1))
        return Origin(kind, file, line, value_column), Origin(kind, file, line, key_column)

    return build(values, locate, flaws), flaws


def _unreadable_error(message: str) -> UnreadableError:
    place = PLACE.search(message)
    line, column = (int(place[1]), int(place[2])) if place else (0, 0)
    if message.startswith(TWICE):
        return UnreadableError("a key or table is set twice", "keep one of the two", line, column, "CFG002")
    return UnreadableError(f"TOML: {PLACE.sub('', message).strip()}", "", line, column)


def _scan_key_positions(text: str) -> Places:
    """Return (line, column of the key, column of the value) by path, for every key that starts a line."""
    places: Places = {}
    table: Path = ()
    counts: dict[Path, int] = {}
    closing = ""
    open_brackets = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if closing:
            closing = "" if closing in line else closing
            continue
        if open_brackets > 0:
            open_brackets += _open_bracket_count(line)
            continue
        if header := HEADER.match(line):
            table = _table_path(header, counts)
            places.setdefault(table, (number, header.start(2) + 1, header.start(2) + 1))
        elif key := KEY.match(line):
            _record_position(
                places,
                (*table, *_split_dotted_name(key[1])),
                (number, key.start(1) + 1, key.end() + 1),
                len(table),
            )
            rest = line[key.end() :]
            closing = _opened_delimiter(rest)
            open_brackets = 0 if closing else _open_bracket_count(rest)
    return places


def _record_position(places: Places, path: Path, place: tuple[int, int, int], depth: int) -> None:
    """Record the position of a key, and of the tables that a dotted key creates."""
    for length in range(depth + 1, len(path)):
        places.setdefault(path[:length], place)
    places[path] = place


def _table_path(header: re.Match[str], counts: dict[Path, int]) -> Path:
    path: Path = _split_dotted_name(header[2])
    if header[1] == "[":
        return path
    counts[path] = counts.get(path, -1) + 1
    return (*path, counts[path])


def _split_dotted_name(dotted: str) -> tuple[str, ...]:
    return tuple(name.strip().strip("\"'") for name in re.findall(NAME, dotted))


def _opened_delimiter(rest: str) -> str:
    """Return the delimiter of a multi-line string that `rest` opens but does not close; empty if none."""
    for delimiter in DELIMITERS:
        if rest.startswith(delimiter) and delimiter not in rest[3:]:
            return delimiter
    return ""


def _open_bracket_count(line: str) -> int:
    """Return the number of brackets that a line leaves open, outside strings and comments."""
    bare = NO_BRACKETS.sub("", line)
    return bare.count("[") + bare.count("{") - bare.count("]") - bare.count("}")
