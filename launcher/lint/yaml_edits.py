"""Edits of a block-style YAML text that preserve comments, line endings and all other lines.

Each function takes lines with their endings and a line number from 0. It returns new lines, or None if the
text does not have the supported form: one key with a scalar on its own line.
"""

from __future__ import annotations

import re

Lines = list[str]

KEY_LINE = re.compile(
    r"(?P<indent> *)(?P<key>[\w-]+)\s*:\s+"
    r"(?P<value>\"[^\"#]*\"|'[^'#]*'|\[[^\[\]#]*\]|[^\s#\"'\[\]{}&*|>!][^#]*?)"
    r"(?P<comment>\s+#[^\r\n]*)?(?P<end>\s*)"
)
SECTION_LINE = re.compile(r"(?P<key>[\w-]+)\s*:[ \t]*(?:#[^\r\n]*)?\s*")
INDENT = "  "
MAX_LINE = 1000
"""Longer lines are not matched: these patterns take quadratic time on blanks."""


def remove(lines: Lines, number: int) -> Lines | None:
    """Remove the line of a key; its section as well if the key was the only one in it."""
    if _key_line(lines, number) is None and not _is_empty_key(lines, number):
        return None
    gone = {number}
    section = _section_above(lines, number)
    if section is not None and _children(lines, section) == [number]:
        gone.add(section)
    return [line for place, line in enumerate(lines) if place not in gone]


def move(lines: Lines, number: int, target: str, value: str | None) -> Lines | None:
    """Move the key of a line to the end of its section, or of the file for a key without one.

    A missing section is added at the end of the file.

    Args:
        value: new text of the value; None keeps the old one.
    """
    match, rest = _key_line(lines, number), remove(lines, number)
    section, _, key = target.rpartition(".")
    if match is None or rest is None:
        return None
    end = "\r\n" if lines[number].endswith("\r\n") else "\n"
    text = f"{key}: {value or match['value'].rstrip()}{match['comment'] or ''}{end}"
    header = _header_of(rest, section) if section else None
    if header is None:
        added = [f"{section}:{end}", INDENT + text] if section else [text]
        return [*_closed(rest, end), *added]
    children = _children(rest, header)
    if not children:
        return None
    last = children[-1] + 1
    return [*_closed(rest[:last], end), " " * _indent(rest[children[0]]) + text, *rest[last:]]


def open_section(lines: Lines, number: int, key: str, value: str) -> Lines | None:
    """Turn `SECTION: OLD` into a section whose only key has the value; the comment stays with the section."""
    match = _key_line(lines, number)
    if match is None or match["indent"]:
        return None
    end = "\r\n" if lines[number].endswith("\r\n") else "\n"
    header = f"{match['key']}:{match['comment'] or ''}{end}"
    return [*lines[:number], header, f"{INDENT}{key}: {value}{end}", *lines[number + 1 :]]


def _closed(lines: Lines, end: str) -> Lines:
    """Return the lines, with a line ending after the last line too."""
    if not lines or lines[-1].endswith("\n") or not lines[-1]:
        return lines
    return [*lines[:-1], lines[-1] + end]


def rename_section(lines: Lines, number: int, name: str) -> Lines | None:
    """Rename the top-level section whose key is on the line."""
    match = _match(SECTION_LINE, lines[number])
    if match is None:
        return None
    return [*lines[:number], name + lines[number][match.end("key") :], *lines[number + 1 :]]


def _match(pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
    return pattern.fullmatch(line) if len(line) <= MAX_LINE else None


def _key_line(lines: Lines, number: int) -> re.Match[str] | None:
    """Match a key with a scalar; None if the value continues on the next line."""
    match = _match(KEY_LINE, lines[number])
    following = next((line for line in lines[number + 1 :] if line.strip()), "")
    is_continued = _indent(following) > _indent(lines[number]) and not following.lstrip().startswith("#")
    return None if match is None or is_continued else match


def _is_empty_key(lines: Lines, number: int) -> bool:
    """Return whether a line is a key without a value, or with `null`, and no lines below it."""
    line = lines[number].lstrip(" ")
    following = next((each for each in lines[number + 1 :] if _is_content(each)), "")
    is_opening = _indent(following) > _indent(lines[number]) or following.lstrip().startswith("- ")
    return _match(SECTION_LINE, line) is not None and not is_opening


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _is_content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _section_above(lines: Lines, number: int) -> int | None:
    """Return the number of the line that opens the section of an indented line; None without one."""
    for place in range(number - 1, -1, -1):
        if _is_content(lines[place]) and _indent(lines[place]) < _indent(lines[number]):
            return place if _match(SECTION_LINE, lines[place]) else None
    return None


def _header_of(lines: Lines, section: str) -> int | None:
    for place, line in enumerate(lines):
        match = _match(SECTION_LINE, line)
        if match is not None and match["key"] == section:
            return place
    return None


def _children(lines: Lines, header: int) -> list[int]:
    """Return the numbers of the lines in a section, without blank lines and comments."""
    children = []
    for place in range(header + 1, len(lines)):
        if _is_content(lines[place]):
            if _indent(lines[place]) == 0:
                break
            children.append(place)
    return children
