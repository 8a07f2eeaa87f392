"""Messages for values that the schema rejects: expected and actual value, and the edit that fixes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_origin

from neobert.config.annotations import (
    TAG,
    annotation_at,
    chosen_tag,
    is_section,
    literal_choices,
    members_by_tag,
    type_hints,
    unwrap,
)
from neobert.config.hydrate import REQUIRED, TOO_LARGE, UNKNOWN, Problem
from neobert.config.key_suggestions import advice_for_near_name, closest_name, correct_spelling, suggest_key
from neobert.config.keys import KeyInfo, describe_field, sections, type_text
from neobert.config.migrated_files import advice_for_entry, is_accepted_value, yaml_text
from neobert.config.migrated_keys import (
    NO_SUCH,
    advice_for_key,
    advice_for_name,
    advice_for_value,
    rename_table,
    translate_entry,
)
from neobert.config.nodes import Flaw, Node, Path, children, find, join, nearest, to_plain_value
from neobert.config.removed_keys import REMOVED
from neobert.config.schema import RunConfig
from neobert.config.yaml_reader import read_number

HABITS = {"yes": "true", "y": "true", "on": "true", "no": "false", "n": "false", "off": "false"}
GROUPED = re.compile(r"[-+]?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")
DECIMAL_COMMA = re.compile(r"[-+]?[0-9]+,[0-9]+")
GLUED_PAIR = re.compile(r"([A-Za-z_]+):(\S+)")
IN_QUOTES = "put the value in quotes: "
LONGEST_SHOWN = 60
MAX_LISTED = 12
"""Maximum number of keys that a hint lists."""


def explain_problem(problem: Problem, root: Node, schema: type[Any]) -> Iterator[Flaw]:
    """Yield the errors of a rejected value, with message, hint and file position."""
    if problem.kind == UNKNOWN:
        yield from _unknown_key_flaws(problem.path, root, schema)
    elif problem.kind == REQUIRED:
        yield _missing_key_flaw(problem.path, root, schema)
    else:
        yield _wrong_value_flaw(problem, root, schema)


def _unknown_key_flaws(path: Path, root: Node, schema: type[Any]) -> Iterator[Flaw]:
    node = nearest(root, path)
    info = describe_field(path, schema)
    if info is not None and info.tags:
        yield _other_type_flaw(path, info.tags, root, schema)
        return
    advice = advice_for_entry(path, to_plain_value(node)) if schema is RunConfig else ""
    if advice:
        problem = "was removed" if join(path) in REMOVED else "is not a key here"
        yield Flaw("CFG007", path, f"{join(path)} {problem}", advice, node.key)
        return
    shown = join(tuple(part if part != "" else '""' for part in path))
    yield Flaw("CFG001", path, f"{shown} is not a key", _unknown_key_hint(path, root, schema), node.key)
    if len(path) == 1 and isinstance(node.value, dict):
        yield from _unknown_children(path, root, schema)


def _other_type_flaw(path: Path, tags: tuple[str, ...], root: Node, schema: type[Any]) -> Flaw:
    """Return the error for a key that belongs to another type of the section."""
    above, section = path[:-1], join(path[:-1])
    chosen = _selected_tag(above, root, schema)
    is_default = find(root, (*above, TAG)) is None
    message = (
        f"{join(path)} is a key of type {' or '.join(tags)}, "
        f"and {section}.{TAG} is {chosen}{' by default' if is_default else ''}"
    )
    advice, other = advice_for_name(path), f"{section}.{TAG}: {tags[0]}"
    counterpart = advice.removeprefix(f"write {section}.").partition(",")[0]
    info = describe_field((*above, counterpart), schema)
    is_of_chosen_type = info is not None and (not info.tags or chosen in info.tags)
    hint = f"{advice}, or {other}" if is_of_chosen_type else f"write {other}, or remove {join(path)}"
    return Flaw("CFG001", path, message, hint, nearest(root, path).key)


def _selected_tag(section: Path, root: Node, schema: type[Any]) -> str:
    return chosen_tag(annotation_at(section, schema), to_plain_value(nearest(root, section)))


def _unknown_children(path: Path, root: Node, schema: type[Any]) -> Iterator[Flaw]:
    """Yield errors for keys of an unknown section that belong in a section other than the suggested one."""
    meant = suggest_key(join(path))
    for name, _ in children(nearest(root, path)):
        section, _, key = suggest_key(str(name)).rpartition(".")
        if advice_for_key((*path, name)) or (key == name and section != meant):
            yield from _unknown_key_flaws((*path, name), root, schema)


def _unknown_key_hint(path: Path, root: Node, schema: type[Any]) -> str:
    name = str(path[-1])
    if name.startswith("$variables"):
        return 'YAML reads {...} as a mapping: put the text in quotes, "{$variables.name}"'
    if name == "<<":
        return "write the keys themselves: YAML 1.2 has no merge key <<"
    if (glued := _missing_space_hint(name)) or (glued := _dotted_key_hint(name, schema)):
        return glued
    holder = unwrap(annotation_at(path[:-1], schema))[0]
    if tags := members_by_tag(holder):
        holder = tags[_selected_tag(path[:-1], root, schema)]
    names = list(type_hints(holder)) if is_section(holder) else []
    is_in_a_section = schema is RunConfig and not any(isinstance(part, int) for part in path)
    near = suggest_key(join(path)) if is_in_a_section else closest_name(name, names)
    if not near and is_in_a_section and (advice := advice_for_near_name(name)):
        return advice
    if not near and 0 < len(names) <= MAX_LISTED:
        return f"the keys are {', '.join(names)}"
    if not near:
        return _dissimilar_key_hint(name, nearest(root, path))
    section, _, key = near.rpartition(".")
    return f"write {near} (section {section})" if section and key == name else f"did you mean {near}?"


def _dissimilar_key_hint(name: str, node: Node) -> str:
    if not isinstance(node.value, dict):
        return NO_SUCH
    if any(child in sections() for child in node.value):
        return f"move the sections of {name} to the top level"
    return f"move the keys that are used to their sections, and remove the section {name}"


def _missing_space_hint(text: str) -> str:
    """Return a hint for `key:value` without a space after the colon; empty for other text."""
    found = GLUED_PAIR.match(text)
    return f"write a space after the colon: {found[1]}: {found[2]}" if found else ""


def _dotted_key_hint(name: str, schema: type[Any]) -> str:
    """Return a hint for `section.key` as a single key, which only arguments support; else an empty string."""
    section, _, key = name.rpartition(".")
    is_key = bool(section) and describe_field(tuple(name.split(".")), schema) is not None
    return f"write {key} in the section {section}: dotted keys are for the command line" if is_key else ""


def _missing_key_flaw(path: Path, root: Node, schema: type[Any]) -> Flaw:
    node = nearest(root, path)
    parent = join(path[:-1])
    if isinstance(path[-1], int):
        expected = type_text(annotation_at(path[:-1], schema))
        return Flaw("CFG003", path[:-1], f"{parent} expects {expected}", "", node.origin)
    info = describe_field(path, schema)
    hint = f"{info.description} It is {info.type}.".lstrip() if info else ""
    message = f"{parent or 'the file'} has no {path[-1]}, which is required"
    return Flaw("CFG003", path, message, hint, node.origin)


def _wrong_value_flaw(problem: Problem, root: Node, schema: type[Any]) -> Flaw:
    path = problem.path
    annotation = annotation_at(path, schema) if path else schema
    expected = type_text(annotation)
    message = f"{join(path) or 'a config'} expects {expected}, got {format_value(problem.value)}"
    origin = nearest(root, path).origin
    hint = advice_for_value(join(path), problem.value) or _translation_hint(path, problem.value)
    hint = hint or _value_hint(problem.value, annotation, path, schema)
    if problem.value is None and origin.kind == "override":
        hint = f"write {join(path)}=VALUE, or omit the argument"
    if hint.startswith(IN_QUOTES) and origin.kind == "override":
        hint = f"put the value in quotes, inside the shell's quotes: '{hint.removeprefix(IN_QUOTES)}'"
    if not hint and problem.kind == TOO_LARGE:
        # the description of a key gives the reason for its bounds
        info = describe_field(path, schema)
        hint = info.description if info else ""
    return Flaw("CFG003", path, message, hint, origin)


def _translation_hint(path: Path, value: Any) -> str:
    """Return a hint with the converted value if the value follows another trainer's format; else empty."""
    meant = translate_entry(str(path[-1]), value) if path else None
    if meant is None or not is_accepted_value(meant.key, meant.value):
        return ""
    return (
        f"write {yaml_text(meant.value)}" if meant.key == join(path) else f"write {meant.key}: {meant.value}"
    )


def format_value(value: object) -> str:
    """Format a value for a message."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None:
        return "no value (null)"
    text = json.dumps(value, ensure_ascii=False)
    if len(text) > LONGEST_SHOWN:
        text = text[:LONGEST_SHOWN] + "..."
    return f"the text {text}" if isinstance(value, str) else text


def _value_hint(value: object, annotation: Any, path: Path, schema: type[Any]) -> str:
    bare, is_optional = unwrap(annotation)
    if value is None and is_section(bare):
        return f"write a key under {join(path)}, or remove the line"
    if value is None:
        return _null_hint(describe_field(path, schema))
    if is_section(bare) and isinstance(value, str):
        return _missing_space_hint(value) or _section_hint(value, bare, path, schema)
    if choices := literal_choices(annotation):
        text = value[0] if isinstance(value, list) and len(value) == 1 else value
        near = _intended_choice(str(text), choices)
        return f"did you mean {near}?" if near else f"write {' or '.join(choices)}"
    if value == "None":
        way_out = "write null" if is_optional else _null_hint(describe_field(path, schema))
        return f"YAML writes null, not None: {way_out}"
    return _text_hint(value, bare) if isinstance(value, str) else _other_type_hint(value, bare)


def _other_type_hint(value: object, bare: Any) -> str:
    """Return a hint for a value that is neither text nor null; empty if there is none."""
    if isinstance(value, list) and [type(each) for each in value] == [bare]:
        return f"write {yaml_text(value[0])}, without brackets"
    if bare is str and not isinstance(value, dict | list):
        return f'{IN_QUOTES}"{json.dumps(value)}"'
    if bare is int and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if bare is bool and value in (0, 1):
        return f"write {'true' if value else 'false'}"
    return ""


def _intended_choice(value: str, choices: Sequence[str]) -> str:
    """Return the only choice that starts with `value`, else the choice that it misspells; else empty."""
    longer = [each for each in choices if each.startswith(value)] if value else []
    names = {each.replace("-", "_"): each for each in choices}
    return longer[0] if len(longer) == 1 else names.get(correct_spelling(value, names), "")


def _section_hint(value: str, section: Any, path: Path, schema: type[Any]) -> str:
    known = advice_for_value(join((*path, "name")), value) or rename_table()["sections_as_text"].get(
        join(path)
    )
    if known:
        return known
    choices = literal_choices(annotation_at((*path, "name"), schema)) if "name" in type_hints(section) else ()
    return f"write {join((*path, 'name'))}: {' or '.join(choices)}" if choices else "write a section of keys"


def _null_hint(info: KeyInfo | None) -> str:
    if info is None:
        return "remove the line"
    if info.default is None:
        return f"write a value for {info.path.rpartition('.')[2]}; the key has no default"
    return f"remove the line to use the value of the profile, or the default ({format_value(info.default)})"


def _is_list_of_text(bare: Any) -> bool:
    items = (item for item in get_args(bare) if item is not Ellipsis)
    return all(literal_choices(item) or unwrap(item)[0] is str for item in items)


def _text_hint(value: str, bare: Any) -> str:
    if get_origin(bare) is tuple and ("," in value or _is_list_of_text(bare)):
        return f"write a list: [{value.strip('[]')}]"
    if bare is bool and value.lower() in HABITS:
        return f"YAML 1.2 reads {value} as text: write {HABITS[value.lower()]}"
    if bare is bool and value.lower() in ("true", "false"):
        return f"remove the quotes: {value.lower()}"
    if bare in (int, float):
        if read_number(value.strip()) is not None:
            return f"remove the quotes: {value.strip()}"
        if DECIMAL_COMMA.fullmatch(value) and not GROUPED.fullmatch(value):
            return f"write a point, not a comma: {value.replace(',', '.')}"
        joined = value.replace("_", "").replace(",", "")
        if read_number(joined) is not None:
            return f"write the number without separators: {joined}"
    return ""
