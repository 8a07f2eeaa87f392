"""Reader of YAML 1.2, based on the events of PyYAML's C parser: position of every value, and size limits.

Plain scalars follow the core schema: `6e-4` and `1e-5` are numbers; `no`, `on`, `1:30`, `1_000` and dates are
text; octal is `0o17`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from neobert.config.nodes import (
    LARGEST_INT,
    MAX_DEPTH,
    MAX_VALUES,
    Flaw,
    Node,
    Origin,
    OriginKind,
    Path,
    Scalar,
    UnreadableError,
    join,
    key_flaw,
    scalar_flaw,
    size_and_depth,
)

if TYPE_CHECKING:
    from yaml import Mark, MarkedYAMLError

NULLS = frozenset({"", "~", "null", "Null", "NULL"})
BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
DECIMAL = re.compile(r"[-+]?[0-9]+")
OCTAL_OR_HEXADECIMAL = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")

MAX_DIGITS = 4000


def read_scalar(text: str) -> Scalar:
    """Parse a plain scalar: null, a bool, a number, or else text.

    Infinities and NaN are returned as floats, for the caller to reject.
    """
    if text in NULLS:
        return None
    if text in BOOLS:
        return BOOLS[text]
    number = read_number(text)
    return text if number is None else number


def read_number(text: str) -> int | float | None:
    """Parse a number; return None if the text is not a number."""
    if DECIMAL.fullmatch(text):
        return int(text) if len(text) < MAX_DIGITS else LARGEST_INT + 1
    if FLOAT.fullmatch(text):
        return float(text)
    if OCTAL_OR_HEXADECIMAL.fullmatch(text):
        return int(text, 0)
    return float(text.replace(".", "")) if NOT_FINITE.fullmatch(text) else None


def read_yaml(text: str, file: str, kind: OriginKind) -> tuple[Node | None, list[Flaw]]:
    """Parse YAML to a tree (None for an empty document) and a list of errors. Raises UnreadableError."""
    import yaml

    try:
        reader = _YamlReader(text, file, kind)
        return reader.read_stream(), reader.flaws
    except yaml.MarkedYAMLError as error:
        mark = _syntax_error_mark(text, error)
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        hint = _syntax_hint(str(error.problem), "".join(text.splitlines()[line - 1 : line]))
        raise UnreadableError(f"YAML: {error.problem}", hint, line, column) from None
    except yaml.reader.ReaderError as error:
        # The C parser counts bytes here, so the character is searched for.
        line, column = _line_and_column(text, text.find(chr(error.character)))
        message = f"the character U+{error.character:04X} is not allowed"
        raise UnreadableError(
            message,
            "remove the character, or write its escape sequence in a double-quoted string",
            line,
            column,
        ) from None


def _syntax_error_mark(text: str, error: MarkedYAMLError) -> Mark | None:
    """Return the position of a syntax error; for an unclosed construct, the position where it begins."""
    problem, context = error.problem_mark, error.context_mark
    lines = text.rstrip(" \r\n").splitlines() or [""]  # a tab in the last line is the problem itself
    end = len(lines) - 1, len(lines[-1])
    if problem and context and (problem.line, problem.column) >= end:
        return context
    return problem or context


def _syntax_hint(problem: str, source_line: str) -> str:
    indentation = source_line[: len(source_line) - len(source_line.lstrip())]
    if "\t" in indentation or "tab character" in problem:
        return "indent with spaces, not tabs"
    if "cannot start any token" in problem:
        return "indent with spaces, not tabs, and put text that starts with @, ` or % in quotes"
    if "mapping values are not allowed" in problem:
        return "put text that contains ': ' in quotes, and check the indentation"
    if "did not find expected ','" in problem:
        return "close the bracket, and put text that contains ': ' in quotes"
    if "unexpected end of stream" in problem:
        return "close the quote"
    return ""


def _line_and_column(text: str, index: int) -> tuple[int, int]:
    before = text[:index]
    return before.count("\n") + 1, index - before.rfind("\n")


class _YamlReader:
    """Builder of the tree from the parser's events, with limits on depth and number of values."""

    def __init__(self, text: str, file: str, kind: OriginKind) -> None:
        import yaml

        self.yaml = yaml
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        self.next: Callable[[], Any] = loader.get_event
        self.file, self.kind = file, kind
        self.anchors: dict[str, Node] = {}
        self.sizes: dict[Node, tuple[int, int]] = {}
        self.flaws: list[Flaw] = []
        self.num_values = 0

    def read_stream(self) -> Node | None:
        self.next()
        event = self.next()
        if isinstance(event, self.yaml.StreamEndEvent):
            return None
        root = self.read_node(self.next(), (), None)
        self.next()
        event = self.next()
        if not isinstance(event, self.yaml.StreamEndEvent):
            raise self.unreadable(
                "the file has more than one document", "keep one document; `---` starts a new one", event
            )
        return root

    def read_node(self, event: Any, path: Path, key: Origin | None) -> Node:
        origin = self.origin(event)
        self.count(1, event)
        if isinstance(event, self.yaml.AliasEvent):
            return self.read_alias(event, path, origin, key)
        if event.tag is not None:
            raise self.unreadable(f"tag {event.tag} is not supported", "write the value without a tag", event)
        value: Any
        if isinstance(event, self.yaml.ScalarEvent):
            value = self.read_value(event, path, origin)
        else:
            self.check_depth(len(path) + 1, event)
            is_mapping = isinstance(event, self.yaml.MappingStartEvent)
            value = self.read_mapping(path) if is_mapping else self.read_sequence(path)
        node = Node(value, origin, key or origin)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def read_value(self, event: Any, path: Path, origin: Origin) -> object:
        value = read_scalar(event.value) if event.implicit[0] else event.value
        flaw = scalar_flaw(value)
        if flaw is None:
            return value
        self.flaws.append(Flaw("CFG003", path, *flaw, origin))
        return None

    def read_sequence(self, path: Path) -> tuple[Node, ...]:
        items: list[Node] = []
        while not isinstance(event := self.next(), self.yaml.SequenceEndEvent):
            items.append(self.read_node(event, (*path, len(items)), None))
        return tuple(items)

    def read_mapping(self, path: Path) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        while not isinstance(event := self.next(), self.yaml.MappingEndEvent):
            name = self.read_node(event, (*path, "?"), None)
            child_path = (*path, name.value) if isinstance(name.value, str) else path
            child = self.read_node(self.next(), child_path, name.origin)
            if not isinstance(name.value, str):
                shown = "a collection" if isinstance(name.value, dict | tuple) else repr(name.value)
                self.flaws.append(key_flaw(shown, path, name.origin))
            elif name.value in entries:
                self.flaws.append(_duplicate_key_flaw(child_path, entries[name.value], name.origin))
            else:
                entries[name.value] = child
        return entries

    def read_alias(self, event: Any, path: Path, origin: Origin, key: Origin | None) -> Node:
        if event.anchor not in self.anchors:
            raise self.unreadable(f"alias *{event.anchor} has no anchor before it", "", event)
        target = self.anchors[event.anchor]
        size, depth = size_and_depth(target, self.sizes)
        self.count(size, event)
        self.check_depth(len(path) + depth, event)
        return Node(target.value, origin, key or origin)

    def count(self, num_values: int, event: Any) -> None:
        self.num_values += num_values
        if self.num_values > MAX_VALUES:
            raise self.unreadable(
                f"the file expands to more than {MAX_VALUES} values",
                "use fewer aliases" if self.anchors else "check the path: this may not be a run file",
                event,
            )

    def check_depth(self, depth: int, event: Any) -> None:
        if depth > MAX_DEPTH:
            raise self.unreadable(
                f"values are nested deeper than {MAX_DEPTH} levels", "use fewer levels", event
            )

    def origin(self, event: Any) -> Origin:
        mark = event.start_mark
        return Origin(self.kind, self.file, mark.line + 1, mark.column + 1)

    def unreadable(self, message: str, hint: str, event: Any) -> UnreadableError:
        mark = event.start_mark
        return UnreadableError(message, hint, mark.line + 1, mark.column + 1)


def _duplicate_key_flaw(path: Path, first: Node, origin: Origin) -> Flaw:
    message = f"{join(path)} is set twice; first in line {first.key.line}"
    return Flaw("CFG002", path, message, "keep one of the two", origin)
