"""Tree of config values with their file positions, common to all sources of configuration."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time
from typing import Any, Literal, NamedTuple

OriginKind = Literal["default", "profile", "run", "file", "override"]
Scalar = str | int | float | bool | None
Path = tuple[str | int, ...]

COMMAND_LINE = "<command line>"
LARGEST_INT = 2**63 - 1
# Named once: each `dict | tuple` in a test of every node builds another type.
BRANCHES, LEAVES = (dict, tuple), (str, int, float)
MAX_VALUES = 50_000
MAX_DEPTH = 48


class Origin(NamedTuple):
    """File position of a value. Lines and columns count from 1; 0: unknown.

    Kind `run` is a value recorded at the start of the run (`profiles.begun`), in its recorded config.
    For an override the file is `<command line>` and the line is the position of the argument.
    """

    kind: OriginKind
    file: str = ""
    line: int = 0
    column: int = 0


DEFAULT = Origin("default")


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """Value with its position in the file, and the position of its key (its own if it has no key)."""

    value: Scalar | tuple[Node, ...] | dict[str, Node]
    origin: Origin
    key: Origin


class Flaw(NamedTuple):
    """Config error with the position to report. Readers collect flaws, so that all are reported at once."""

    code: str
    path: Path
    message: str
    hint: str
    origin: Origin


class UnreadableError(Exception):
    """Error for text that cannot be parsed as a config. Lines and columns count from 1; 0: unknown."""

    def __init__(
        self, message: str, hint: str = "", line: int = 0, column: int = 0, code: str = "CFG011"
    ) -> None:
        super().__init__(message)
        self.message, self.hint, self.line, self.column, self.code = message, hint, line, column, code


Locate = Callable[[Path], tuple[Origin, Origin]]


def join(path: Path) -> str:
    """Return a path as dotted text."""
    return ".".join(map(str, path))


def to_plain_value(node: Node) -> Any:
    """Convert a tree to plain dicts, lists and scalars, without file positions."""
    if isinstance(node.value, dict):
        return {name: to_plain_value(child) for name, child in node.value.items()}
    if isinstance(node.value, tuple):
        return [to_plain_value(child) for child in node.value]
    return node.value


def children(node: Node) -> Iterator[tuple[str | int, Node]]:
    """Yield the key or index of each child, and the child."""
    if isinstance(node.value, dict):
        yield from node.value.items()
    elif isinstance(node.value, tuple):
        yield from enumerate(node.value)


def walk(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Yield the path and node of all descendants of a node, parents before children."""
    for name, child in children(node):
        below = (*path, name)
        yield below, child
        if isinstance(child.value, BRANCHES):
            yield from walk(child, below)


def find(node: Node, path: Path) -> Node | None:
    """Return the node at a path, or None if there is none."""
    for part in path:
        if isinstance(node.value, dict) and part in node.value:
            node = node.value[str(part)]
        elif isinstance(node.value, tuple) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
        else:
            return None
    return node


def put(node: Node, path: Path, child: Node | None) -> Node:
    """Return a copy of the tree with the node at a path replaced by `child`, or removed if `child` is None.

    The parent of the path must exist.
    """
    if isinstance(node.value, tuple):
        index, items = int(path[0]), list(node.value)
        changed = put(items[index], path[1:], child) if len(path) > 1 else child
        items[index : index + 1] = [] if changed is None else [changed]
        return Node(tuple(items), node.origin, node.key)
    assert isinstance(node.value, dict)
    name, entries = str(path[0]), dict(node.value)
    if len(path) > 1:
        entries[name] = put(entries[name], path[1:], child)
    elif child is None:
        del entries[name]
    else:
        entries[name] = child
    return Node(entries, node.origin, node.key)


def nearest(node: Node, path: Path) -> Node:
    """Return the node at a path, or its closest existing parent."""
    while path:
        found = find(node, path)
        if found is not None:
            return found
        path = path[:-1]
    return node


def size_and_depth(node: Node, known: dict[Node, tuple[int, int]]) -> tuple[int, int]:
    """Return the number of values and the depth of a tree. A shared subtree is counted at each use."""
    if node not in known:
        size, depth = 1, 0
        for _, child in children(node):
            child_size, child_depth = size_and_depth(child, known)
            size, depth = size + child_size, max(depth, child_depth)
        known[node] = (size, depth + 1)
    return known[node]


def scalar_flaw(value: object) -> tuple[str, str] | None:
    """Return message and hint for a scalar that no key accepts, such as NaN; None for a valid scalar."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a finite number", "write a finite number, or remove the line"
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        return "the integer does not fit in 64 bits", "write a smaller number"
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        # surrogates stand for argument bytes that Python could not decode
        encoding = sys.getfilesystemencoding()
        if encoding == "utf-8":
            return "the text is not valid Unicode", "write the text in UTF-8"
        return (
            f"text cannot be decoded in the locale's encoding {encoding}",
            "set PYTHONUTF8=1, or LC_ALL=C.UTF-8",
        )
    return None


def build(value: object, locate: Locate, flaws: list[Flaw], path: Path = ()) -> Node:
    """Convert plain values (of TOML, JSON or code) to a tree; errors are appended to `flaws`.

    Dates and times become ISO 8601 text, and rejected values null.
    """
    origin, key = locate(path)
    if len(path) > MAX_DEPTH:
        flaws.append(
            Flaw("CFG003", path[:2], f"values are nested deeper than {MAX_DEPTH} levels", "", origin)
        )
        return Node(None, origin, key)
    if value is None or isinstance(value, LEAVES):
        flaw = scalar_flaw(value)
        if flaw:
            flaws.append(Flaw("CFG003", path, *flaw, origin))
        return Node(None if flaw else value, origin, key)
    if isinstance(value, Mapping):
        return Node(_build_entries(value, locate, flaws, path), origin, key)
    if isinstance(value, list | tuple):
        items = (build(item, locate, flaws, (*path, index)) for index, item in enumerate(value))
        return Node(tuple(items), origin, key)
    assert isinstance(value, date | time), type(value)
    return Node(value.isoformat(), origin, key)


def _build_entries(
    mapping: Mapping[Any, object], locate: Locate, flaws: list[Flaw], path: Path
) -> dict[str, Node]:
    entries = {}
    for name, child in mapping.items():
        if isinstance(name, str):
            entries[name] = build(child, locate, flaws, (*path, name))
        else:
            flaws.append(key_flaw(repr(name), path, locate(path)[0]))
    return entries


def key_flaw(shown: str, path: Path, origin: Origin) -> Flaw:
    """Return the CFG003 error for a mapping key that is not a string.

    Args:
        shown: the key as in the file, for the message.
        path: path of the mapping.
    """
    hint = "put the key in quotes"
    if shown[:1].isdigit():
        hint += "; write a decimal number with a point, not a comma"
    return Flaw("CFG003", path, f"key {shown} is not text", hint, origin)
