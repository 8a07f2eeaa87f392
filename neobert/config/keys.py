"""What the schema says about a key: its type in words, its default, its choices, its description."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import date
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MinLen

from neobert.config.schema import RunConfig
from neobert.config.tree import Path
from neobert.counting import counted

NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    date: "a date such as 2026-12-31",
}
FEW = 5
BOUNDS = ((Gt, "gt", "above"), (Ge, "ge", "of at least"), (Lt, "lt", "below"), (Le, "le", "of at most"))


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A key of the schema. `default` is the value that a file which leaves the key out gets."""

    path: str
    type: str
    default: Any
    description: str
    choices: tuple[str, ...]


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """The annotations of a section, bounds included."""
    return {name: hint for name, hint in get_type_hints(kind, include_extras=True).items() if name[0] != "_"}


@cache
def all_keys() -> tuple[str, ...]:
    """Dotted names of every key, in the schema's order. Sections are not keys."""
    return tuple(_keys(RunConfig, ""))


def _keys(kind: Any, prefix: str) -> Iterator[str]:
    for name, hint in hints_of(kind).items():
        if is_section(hint):
            yield from _keys(hint, f"{prefix}{name}.")
        else:
            yield prefix + name


@cache
def sections(root: Any = RunConfig) -> tuple[str, ...]:
    """Names of the sections."""
    return tuple(name for name, hint in hints_of(root).items() if is_section(hint))


@cache
def path_keys() -> Mapping[Path, tuple[str, ...]]:
    """Keys that hold a path, each with its values that are words and no paths."""
    marked = ((path, found.metadata) for path, found in _fields_of_sections())
    return {path: about.get("words", ()) for path, about in marked if about.get("is_path")}


@cache
def replacing_keys() -> Mapping[Path, tuple[Path, ...]]:
    """Keys that, given in a nearer layer, take the place of others of a farther one."""
    return {
        path: tuple((*path[:-1], name) for name in found.metadata["replaces"])
        for path, found in _fields_of_sections()
        if "replaces" in found.metadata
    }


def _fields_of_sections() -> Iterator[tuple[Path, Field[Any]]]:
    for name, kind in hints_of(RunConfig).items():
        if is_section(kind):
            yield from (((name, item.name), item) for item in fields(kind))


def annotation_at(path: Path, root: Any = RunConfig) -> Any:
    """The annotation of a key, or of an item of its list; None where the schema has no such place."""
    annotation: Any = root
    for part in path:
        annotation, _ = unwrap(annotation)
        items = get_args(annotation)
        if is_section(annotation):
            annotation = hints_of(annotation).get(str(part))
        elif get_origin(annotation) is tuple and isinstance(part, int):
            annotation = items[0] if items[-1] is Ellipsis else items[min(part, len(items) - 1)]
        elif get_origin(annotation) is dict:
            annotation = Any
        else:
            return annotation if annotation is Any else None
    return annotation


def unwrap(annotation: Any) -> tuple[Any, bool]:
    """Strip bounds and null: the bare type, and whether null is allowed."""
    is_optional = False
    while True:
        if get_origin(annotation) in (Union, types.UnionType):
            annotation = next(item for item in get_args(annotation) if item is not type(None))
            is_optional = True
        elif get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        else:
            return annotation, is_optional


def choices_of(annotation: Any) -> tuple[str, ...]:
    """The closed set that a key takes its value from, or nothing."""
    bare, _ = unwrap(annotation)
    return get_args(bare) if get_origin(bare) is Literal else ()


def is_section(annotation: Any) -> bool:
    """Whether an annotation is a mapping with keys of its own."""
    return is_dataclass(annotation)


def is_bool(path: Path) -> bool:
    """Whether a key is a switch."""
    return unwrap(annotation_at(path))[0] is bool


def type_text(annotation: Any) -> str:
    """The type in words: `an integer above 0`, `one of bf16, fp32, no`."""
    if get_origin(annotation) in (Union, types.UnionType):
        return f"{type_text(next(a for a in get_args(annotation) if a is not type(None)))}, or null"
    if get_origin(annotation) is Annotated:
        bare, *bounds = get_args(annotation)
        return type_text(bare) + _bounds_text(bounds)
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(get_args(annotation))
    if get_origin(annotation) is tuple:
        return _tuple_text(get_args(annotation))
    if is_section(annotation):
        names = list(hints_of(annotation))
        return "a mapping of " + ", ".join(names) if len(names) <= FEW else "a mapping of keys"
    return NAMES.get(annotation, "a mapping" if get_origin(annotation) is dict else "any value")


def _tuple_text(items: tuple[Any, ...]) -> str:
    if items[-1] is Ellipsis:
        return f"a list, each item {type_text(items[0])}"
    return f"a list of {len(items)}, each {type_text(items[0])}"


def _bounds_text(bounds: list[Any]) -> str:
    words = [
        f"{word} {getattr(bound, name):g}"
        for bound in bounds
        for kind, name, word in BOUNDS
        if isinstance(bound, kind)
    ]
    lengths = [
        f"of at least {counted(bound.min_length, 'character')}"
        for bound in bounds
        if isinstance(bound, MinLen)
    ]
    return "".join(f" {text}" for text in [" and ".join(words), *lengths] if text)


def describe_field(path: Path, root: type[Any] = RunConfig) -> KeyInfo | None:
    """What the schema says about a key or a section, or None where it has no such key."""
    holder = unwrap(annotation_at(path[:-1], root))[0]
    if not path or not is_section(holder):
        return None
    found = next((item for item in fields(holder) if item.name == path[-1]), None)
    if found is None:
        return None
    annotation = hints_of(holder)[found.name]
    dotted = ".".join(map(str, path))
    description = found.metadata.get("description", "")
    return KeyInfo(dotted, type_text(annotation), _default(found), description, choices_of(annotation))


def _default(item: Field[Any]) -> Any:
    if item.default is not MISSING:
        return item.default
    return item.default_factory() if item.default_factory is not MISSING else None
