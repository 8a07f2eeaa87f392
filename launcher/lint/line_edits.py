"""Edits of lines: one replacement in a line; removing, moving and adding keys of YAML.

Edits of YAML preserve comments, line endings and all other lines. They take lines with their endings and a
line number from 0. They return the new lines, or None if the key has no line of its own or no scalar value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from neobert.config.document import LINE_BREAK

Lines = list[str]
KEY_LINE = re.compile(
    r"(?P<indent> *)(?P<key>[\w-]+)\s*:\s+"
    r"(?P<value>\"[^\"#]*\"|'[^'#]*'|\[[^\[\]#]*\]|[^\s#\"'\[\]{}&*|>!][^#]*?)"
    r"(?P<comment>\s+#[^\r\n]*)?(?P<end>\s*)"
)
SECTION_LINE = re.compile(r"(?P<key>[\w-]+)\s*:[ \t]*(?:#[^\r\n]*)?\s*")
FLOW_LINE = re.compile(
    r"(?P<key>[\w-]+)\s*:[ \t]*\{(?P<content>.*[^\s,{])?[\s,]*\}(?P<rest>\s*(?:#[^\r\n]*)?\s*)"
)
INDENT = "  "
MAX_LINE = 1000
"""Longer lines are not matched: these patterns take quadratic time on blanks."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in a line. Lines and columns count from 1."""

    line: int
    column: int
    old: str
    new: str

    def fits(self, text: str) -> bool:
        """Return whether the line has the text to replace at that column, as a whole word."""
        start, stop = self.column - 1, self.column - 1 + len(self.old)
        return text[start:stop] == self.old and not re.match(r"[\w.-]", text[stop : stop + 1])


def apply_edit(source: str, edit: Edit) -> str | None:
    """Return the source with one edit applied, or None if it has other text at that position."""
    lines = split_lines(source)
    if edit.line > len(lines) or not edit.fits(lines[edit.line - 1]):
        return None
    text = lines[edit.line - 1]
    start = edit.column - 1
    lines[edit.line - 1] = text[:start] + edit.new + text[start + len(edit.old) :]
    return "".join(lines)


def split_lines(source: str) -> list[str]:
    """Split a text at the line breaks of YAML; the lines keep them."""
    ends = [match.end() for match in LINE_BREAK.finditer(source)]
    return [source[start:stop] for start, stop in zip([0, *ends], [*ends, len(source)], strict=True)]


def remove_key_line(lines: Lines, number: int) -> Lines | None:
    """Remove the line of a key; its section as well if the key was the only one in it."""
    if _match_key_line(lines, number) is None and not _is_empty_key(lines, number):
        return None
    gone = {number}
    section = _section_above(lines, number)
    if section is not None and _lines_in_section(lines, section) == [number]:
        gone.add(section)
    return [line for place, line in enumerate(lines) if place not in gone]


def move_key_line(lines: Lines, number: int, target: str, value: str | None) -> Lines | None:
    """Move the key of a line to the end of its section, or of the file for a key without a section.

    Args:
        value: new text of the value; None keeps the old one.
    """
    match, rest = _match_key_line(lines, number), remove_key_line(lines, number)
    if match is None or rest is None:
        return None
    value = value or match["value"].rstrip()
    return add_key_line(rest, target, value, match["comment"] or "", line_ending(lines[number]))


def add_key_line(lines: Lines, target: str, value: str, comment: str = "", end: str = "\n") -> Lines | None:
    """Add a key at the end of its section, or of the file for a key without a section.

    A missing section is added at the end of the file. An inline section, `{...}` on a line, gets the key as
    its last one, below the comment of the key.
    """
    section, _, key = target.rpartition(".")
    text = f"{key}: {value}{comment}{end}"
    if section and (
        inline := next((line for line in lines if _opens_section(FLOW_LINE, line, section)), None)
    ):
        place, above = lines.index(inline), comment.strip()
        extended = _append_to_inline_section(inline, f"{key}: {value}")
        return [*lines[:place], *([above + end] if above else []), extended, *lines[place + 1 :]]
    header = _find_header(lines, section) if section else None
    if header is None:
        added = [f"{section}:{end}", INDENT + text] if section else [text]
        return [*_with_final_line_ending(lines, end), *added]
    children = _lines_in_section(lines, header)
    if not children:
        return None
    last = children[-1] + 1
    return [
        *_with_final_line_ending(lines[:last], end),
        " " * _indent_width(lines[children[0]]) + text,
        *lines[last:],
    ]


def open_section(lines: Lines, number: int, key: str, value: str) -> Lines | None:
    """Turn `SECTION: OLD` into a section with the entry `KEY: VALUE`; its comment stays with the section.

    Returns None if the line has no key or is indented.
    """
    match = _match_key_line(lines, number)
    if match is None or match["indent"]:
        return None
    end = line_ending(lines[number])
    header = f"{match['key']}:{match['comment'] or ''}{end}"
    return [*lines[:number], header, f"{INDENT}{key}: {value}{end}", *lines[number + 1 :]]


def line_ending(line: str) -> str:
    """Return the line ending to use after a line: CRLF if the line ends with it, else a line feed."""
    return "\r\n" if line.endswith("\r\n") else "\n"


def _with_final_line_ending(lines: Lines, end: str) -> Lines:
    if not lines or lines[-1].endswith("\n") or not lines[-1]:
        return lines
    return [*lines[:-1], lines[-1] + end]


def rename_section(lines: Lines, number: int, name: str) -> Lines | None:
    """Rename the section that a line opens; return None if the line opens no section."""
    match = _match_line(SECTION_LINE, lines[number])
    if match is None:
        return None
    return [*lines[:number], name + lines[number][match.end("key") :], *lines[number + 1 :]]


def _match_line(pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
    return pattern.fullmatch(line) if len(line) <= MAX_LINE else None


def _match_key_line(lines: Lines, number: int) -> re.Match[str] | None:
    """Match a line with a key and a scalar; None for other lines and if the value continues on the next."""
    match = _match_line(KEY_LINE, lines[number])
    following = next((line for line in lines[number + 1 :] if line.strip()), "")
    is_continued = _indent_width(following) > _indent_width(
        lines[number]
    ) and not following.lstrip().startswith("#")
    return None if match is None or is_continued else match


def _is_empty_key(lines: Lines, number: int) -> bool:
    """Return whether a line is a key without a value, or with `null`, and no lines below it."""
    line = lines[number].lstrip(" ")
    following = next((each for each in lines[number + 1 :] if _is_content(each)), "")
    is_opening = _indent_width(following) > _indent_width(lines[number]) or following.lstrip().startswith(
        "- "
    )
    return _match_line(SECTION_LINE, line) is not None and not is_opening


def _indent_width(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _is_content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _section_above(lines: Lines, number: int) -> int | None:
    """Return the number of the line that opens the section of an indented line, or None if there is none."""
    for place in range(number - 1, -1, -1):
        if _is_content(lines[place]) and _indent_width(lines[place]) < _indent_width(lines[number]):
            return place if _match_line(SECTION_LINE, lines[place]) else None
    return None


def _find_header(lines: Lines, section: str) -> int | None:
    return next(
        (place for place, line in enumerate(lines) if _opens_section(SECTION_LINE, line, section)), None
    )


def _opens_section(pattern: re.Pattern[str], line: str, section: str) -> bool:
    match = _match_line(pattern, line)
    return match is not None and match["key"] == section


def _append_to_inline_section(line: str, entry: str) -> str:
    match = FLOW_LINE.fullmatch(line)
    assert match is not None
    content = f"{match['content']}, {entry}" if match["content"] else entry
    return f"{match['key']}: {{{content}}}{match['rest']}"


def _lines_in_section(lines: Lines, header: int) -> list[int]:
    """Return the numbers of the lines in a section, without blank lines and comments."""
    children = []
    for place in range(header + 1, len(lines)):
        if _is_content(lines[place]):
            if _indent_width(lines[place]) == 0:
                break
            children.append(place)
    return children
