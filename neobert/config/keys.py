"""Description of a key in the schema: type, default, choices, and the effect of a change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field
from datetime import date
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from neobert.config.annotations import (
    annotation_at,
    is_section,
    is_union,
    literal_choices,
    members_by_tag,
    section_fields,
    type_hints,
    unwrap,
    without_null,
)
from neobert.config.nodes import Path
from neobert.config.removed_keys import REMOVED
from neobert.config.schema import RunConfig
from neobert.plurals import counted
from neobert.schema_fields import PER_KEY, Bound, Effect

NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    date: "a date such as 2026-12-31",
}
FEW = 5
BOUNDS = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most"}


class KeyInfo(NamedTuple):
    """Key of the schema.

    Attributes:
        default: value in a file that omits the key.
        tags: in a section of several types, the types that have this key; empty if all have it.
    """

    path: str
    type: str
    default: Any
    description: str
    choices: tuple[str, ...]
    tags: tuple[str, ...] = ()


@cache
def all_keys(root: Any = RunConfig) -> tuple[str, ...]:
    """Return the dotted names of all keys, in the schema's order. Sections are not keys."""
    return tuple(_walk_keys(root, ""))


def _walk_keys(kind: Any, prefix: str) -> Iterator[str]:
    for name, hint in type_hints(kind).items():
        if is_section(hint):
            yield from _walk_keys(hint, f"{prefix}{name}.")
        else:
            yield prefix + name


@cache
def sections() -> tuple[str, ...]:
    """Return the names of the sections."""
    return tuple(name for name, hint in type_hints(RunConfig).items() if is_section(hint))


@cache
def path_keys() -> Mapping[Path, tuple[str, ...]]:
    """Return the keys that hold a path, each with its reserved values, e.g. `auto`, which are not paths."""
    marked = ((path, found.metadata) for path, found in _fields_of_sections())
    return {path: about.get("words", ()) for path, about in marked if about.get("is_path")}


@cache
def reference_keys() -> tuple[Path, ...]:
    """Return the keys that name functions, such as `path/to/file.py:function`."""
    return tuple(path for path, found in _fields_of_sections() if found.metadata.get("is_reference"))


@cache
def pinned_keys() -> Mapping[Path, Path]:
    """Return the path keys that hold a name on the Hub if a revision is set, each with the revision's key."""
    marked = ((path, found.metadata.get("pinned_by")) for path, found in _fields_of_sections())
    return {path: (*path[:-1], revision) for path, revision in marked if revision}


@cache
def path_keys_of_lists() -> Mapping[Path, tuple[str, ...]]:
    """Return the list keys whose items contain paths, each with the names of those item keys."""
    lists = (
        ((name, key), get_args(unwrap(hint)[0])[0])
        for name, kind in type_hints(RunConfig).items()
        for key, hint in type_hints(kind).items()
        if get_origin(unwrap(hint)[0]) is tuple
    )
    held = (
        (path, [item.name for item in section_fields(kind) if item.metadata.get("is_path")])
        for path, kind in lists
    )
    return {path: tuple(names) for path, names in held if names}


@cache
def keys_replacing_others() -> Mapping[Path, tuple[Path, ...]]:
    """Return each key that overrides other keys of lower layers, with the keys that it removes from them."""
    return {
        path: tuple((*path[:-1], name) for name in found.metadata["replaces"])
        for path, found in _fields_of_sections()
        if "replaces" in found.metadata
    }


def _fields_of_sections() -> Iterator[tuple[Path, Field[Any]]]:
    for name, kind in type_hints(RunConfig).items():
        yield from (((name, item.name), item) for item in section_fields(kind))


@cache
def discriminated_sections() -> Mapping[str, Mapping[str, frozenset[str]]]:
    """Return the key names of each tag, for each discriminated section."""
    return {
        name: {tag: frozenset(type_hints(member)) for tag, member in tags.items()}
        for name, hint in type_hints(RunConfig).items()
        if (tags := members_by_tag(hint))
    }


def is_bool(path: Path) -> bool:
    """Return whether a key is a boolean."""
    return unwrap(annotation_at(path))[0] is bool


def type_text(annotation: Any) -> str:
    """Describe the type: `an integer above 0`, `one of bf16, fp32, no`."""
    if is_union(annotation) and unwrap(annotation)[1]:
        return f"{type_text(without_null(annotation))}, or null"
    if get_origin(annotation) is Annotated:
        bare, *bounds = get_args(annotation)
        return type_text(bare) + _bounds_text(bounds)
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(get_args(annotation))
    if get_origin(annotation) is tuple:
        return _tuple_text(get_args(annotation))
    if is_union(annotation) and not is_section(annotation):
        return " or ".join(map(type_text, get_args(annotation)))
    if is_section(annotation):
        names = list(type_hints(annotation))
        is_short = len(names) <= FEW and not is_union(annotation)
        return "a mapping of " + ", ".join(names) if is_short else "a mapping of keys"
    return NAMES.get(annotation, "a mapping" if get_origin(annotation) is dict else "any value")


def _tuple_text(items: tuple[Any, ...]) -> str:
    if items[-1] is Ellipsis:
        return f"a list, each item {type_text(items[0])}"
    return f"a list of {len(items)}, each {type_text(items[0])}"


def _bounds_text(bounds: Iterable[Bound]) -> str:
    texts = [
        f"{BOUNDS[name]} {limit:.9g}"
        if name in BOUNDS
        else f"matching {limit}"
        if name == "pattern"
        else f"of at least {counted(int(limit), 'character')}"
        for name, limit in bounds
    ]
    return f" {' and '.join(texts)}" if texts else ""


def describe_field(path: Path, root: type[Any] = RunConfig) -> KeyInfo | None:
    """Describe a key or a section; None if the schema does not define it."""
    holder = unwrap(annotation_at(path[:-1], root))[0]
    if not path or not is_section(holder):
        return None
    found = next((item for item in section_fields(holder) if item.name == path[-1]), None)
    if found is None:
        return None
    annotation = type_hints(holder)[found.name]
    dotted = ".".join(map(str, path))
    description = found.metadata.get("description", "")
    text, choices = type_text(annotation), literal_choices(annotation)
    return KeyInfo(dotted, text, _default_value(found), description, choices, _type_tags(holder, found.name))


def _type_tags(holder: Any, name: str) -> tuple[str, ...]:
    tags = members_by_tag(holder)
    having = tuple(tag for tag, member in tags.items() if name in type_hints(member))
    return having if len(having) < len(tags) else ()


def _default_value(item: Field[Any]) -> Any:
    if item.default is not MISSING:
        return item.default
    return item.default_factory() if item.default_factory is not MISSING else None


@cache
def key_effect(key: str) -> Effect | None:
    """Return the effect of changing a key: the effect declared for the key, else for its section.

    A key that was removed keeps its effect. Another key that this version does not define has its section's
    effect; None if the section declares effects per key.
    """
    if key in REMOVED:
        return REMOVED[key]
    own = _key_metadata(key).get("affects") or _key_metadata(key.partition(".")[0]).get("affects")
    return None if own == PER_KEY else own


@cache
def keys_affecting(*effects: Effect) -> frozenset[str]:
    """Return the dotted keys whose change has one of these effects."""
    return frozenset(key for key in all_keys() if key_effect(key) in effects)


def is_compared_by_content(key: str) -> bool:
    """Return whether a resume compares the data that a key refers to, not the value of the key."""
    return bool(_key_metadata(key).get("by_content"))


def without_effects(values: dict[str, Any], effects: Iterable[Effect]) -> dict[str, Any]:
    """Return the flat config without the keys whose change has one of these effects."""
    left_out = frozenset(effects)
    return {key: value for key, value in values.items() if key_effect(key) not in left_out}


def _key_metadata(key: str) -> Any:
    section, _, name = key.rpartition(".")
    holder = type_hints(RunConfig).get(section) if section else RunConfig
    return next((item.metadata for item in section_fields(holder) if item.name == name), {})
