"""Reader of config files: size limit, encoding checks, and the file position of every value."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.config.errors import ConfigError, ConfigIssue
from neobert.config.key_suggestions import correct_spelling
from neobert.config.nodes import DEFAULT, Flaw, Node, OriginKind, UnreadableError, build, join
from neobert.config.yaml_reader import read_yaml
from neobert.printable import printable

MAX_BYTES = 2**20
LONGEST_MESSAGE = 500
LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
UTF16_OR_32 = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


@dataclass(frozen=True, slots=True)
class Document:
    """Parsed config: tree of values, source lines, and errors found while reading."""

    file: str
    kind: OriginKind
    root: Node
    lines: tuple[str, ...] = ()
    flaws: tuple[Flaw, ...] = ()

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Document:
        """Build a document without file positions, for values from JSON or from code."""
        flaws: list[Flaw] = []
        root = build(mapping, lambda _: (DEFAULT, DEFAULT), flaws)
        return cls("", "default", root, (), tuple(flaws))


def load_document(path: str | Path, kind: OriginKind = "file") -> Document:
    """Read a YAML file, or a TOML file where the name ends in .toml. Raises ConfigError (CFG011)."""
    path = Path(path)
    text = ""
    try:
        text = _decode(_read_bytes(path))
        root, flaws = _read_text(text, path, kind)
    except UnreadableError as error:
        raise ConfigError([_unreadable_file_issue(path, error, split_lines(text))]) from None
    return Document(str(path), kind, root, split_lines(text), tuple(flaws))


def split_lines(text: str) -> tuple[str, ...]:
    """Split text into lines as YAML counts them."""
    return tuple(LINE_BREAK.split(text))


def _read_text(text: str, path: Path, kind: OriginKind) -> tuple[Node, list[Flaw]]:
    if path.suffix.lower() == ".toml":
        from neobert.config.toml_reader import read_toml

        root, flaws = read_toml(text, str(path), kind)
        return _require_mapping(root if root.value else None, flaws)
    return _require_mapping(*read_yaml(text, str(path), kind))


def _read_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise UnreadableError(
                "is a directory, not a config file", "pass a .yaml or .toml file of this directory"
            )
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        if path.is_symlink():
            message = f"is a link to {os.readlink(path)}, which does not exist"
            raise UnreadableError(message, "correct the link") from None
        raise UnreadableError("does not exist", _hint_for_missing_file(path)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreadableError(f"cannot be read: {reason}") from None
    if len(content) > MAX_BYTES:
        raise UnreadableError(
            "is larger than 1 MiB, the limit of a config file", "check the path: this may be another file"
        )
    return content


def _hint_for_missing_file(path: Path) -> str:
    """Return a hint that names a similar file of the same folder, or else asks to check the path."""
    near = ""
    with suppress(OSError):
        files = {each.name.replace("-", "_").lower(): each.name for each in path.parent.iterdir()}
        near = files.get(correct_spelling(path.name, files), "")
    return f"did you mean {path.with_name(near)}?" if near else "check the path and the current directory"


def _decode(content: bytes) -> str:
    if content.startswith(UTF16_OR_32):
        raise UnreadableError("is UTF-16 or UTF-32 text", "save the file as UTF-8")
    if b"\x00" in content:
        raise UnreadableError("is a binary file", "pass a .yaml or .toml file")
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        column = len(content[content.rfind(b"\n", 0, error.start) + 1 : error.start].decode("utf-8")) + 1
        message = f"is not UTF-8: byte 0x{content[error.start]:02x}"
        raise UnreadableError(message, "save the file as UTF-8", line, column) from None


def _require_mapping(root: Node | None, flaws: list[Flaw]) -> tuple[Node, list[Flaw]]:
    if root is None or root.value is None:
        raise UnreadableError("is empty", "write at least one section, such as trainer:")
    if not isinstance(root.value, dict):
        kind = "a list" if isinstance(root.value, tuple) else "a single value"
        hint = "start with a section, such as trainer:"
        raise UnreadableError(
            f"contains {kind} instead of a mapping", hint, root.origin.line, root.origin.column
        )
    return root, flaws


def _unreadable_file_issue(path: Path, error: UnreadableError, lines: tuple[str, ...]) -> ConfigIssue:
    source_line = lines[error.line - 1] if 0 < error.line <= len(lines) else ""
    message = _printable_excerpt(error.message if error.line else f"{path.name or path} {error.message}")
    return ConfigIssue(error.code, "", message, error.hint, str(path), error.line, error.column, source_line)


def _printable_excerpt(text: str) -> str:
    """Escape control characters and limit the length of a message that contains text from a file."""
    shown = printable(text[: LONGEST_MESSAGE + 1])
    return shown if len(shown) <= LONGEST_MESSAGE else shown[:LONGEST_MESSAGE] + "..."


class Sources:
    """Source lines of all config files and command-line arguments, quoted in error messages."""

    def __init__(self, documents: Mapping[str, tuple[str, ...]]) -> None:
        self.lines = documents

    def issue(self, flaw: Flaw) -> ConfigIssue:
        """Convert a flaw to a `ConfigIssue` with its source line."""
        origin = flaw.origin
        lines = self.lines.get(origin.file, ())
        source_line = lines[origin.line - 1] if 0 < origin.line <= len(lines) else ""
        return ConfigIssue(
            flaw.code,
            join(flaw.path),
            _printable_excerpt(flaw.message),
            _printable_excerpt(flaw.hint),
            origin.file,
            origin.line,
            origin.column,
            source_line,
        )
