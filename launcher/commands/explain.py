"""`explain`: documentation and value of a config key, or a value of the plan with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from functools import reduce
from typing import Any

import validators.rules  # noqa: F401  registers every rule
from launcher.commands.selection import Selection
from launcher.terminal import console
from launcher.terminal.fold import fold
from launcher.terminal.table import format_columns
from launcher.terminal.values import origin_text, result_json, show_value
from neobert.config import KeyInfo, RunConfig, all_keys, to_dict
from neobert.config.canonical import flatten, to_plain
from neobert.config.key_suggestions import (
    advice_for_near_name,
    describe_key,
    keys_about,
    keys_named,
    suggest_key,
)
from neobert.config.migrated_keys import advice_for_key
from neobert.config.nodes import DEFAULT
from neobert.errors import EXIT_OK, ProjectError
from neobert.plan import Derived
from profiles.registry import ResolvedRun
from validators.planning import plan_run
from validators.rule import RULES

PLAN = "plan."
SHORTEST_WORD, MAX_FOUND = 3, 8
IMPLIED = "follows from other keys of the run"


def run(key: str, selection: Selection, output_format: str) -> int:
    """Print a config key, or a value of the plan with its reason, for a run or for the default config.

    Raises ProjectError for an unknown key.
    """
    resolved = selection.resolve()
    derived = dict(plan_run(resolved).derived_values())
    name = key.removeprefix(PLAN)
    if key not in all_keys() and name in derived:
        value, reason = derived[name].value, derived[name].reason
        _print_explanation({"key": PLAN + name, "value": value, "reason": reason}, output_format)
        return EXIT_OK
    try:
        info = describe_key(_full_key(key))
    except ProjectError as error:
        raise _with_suggestions(error, key, derived) from None
    _print_explanation(_key_json(info, resolved), output_format)
    return EXIT_OK


def _full_key(key: str) -> str:
    """Return the full path of a key that is named without its section, if only one section has it.

    Any other `key` is returned unchanged.
    """
    named = keys_named(key)
    return named[0] if len(named) == 1 else key


def _with_suggestions(error: ProjectError, key: str, derived: Mapping[str, Derived[Any]]) -> ProjectError:
    """Return the error, with a hint that names what resembles `key`: a rule, keys, or a value of the plan."""
    if key.upper() in RULES:
        error.hint = f"{key.upper()} is a rule: `neobert-launch rule {key.upper()}`"
        return error
    if key.startswith("variables."):
        error.hint = "`neobert-launch explain variables` shows all variables"
        return error
    named = keys_named(key)
    if named:
        error.hint = f"name the section: {', '.join(named)}"
        return error
    is_plan = key.startswith(PLAN)
    if not is_plan and advice_for_key(tuple(key.split("."))):
        return error
    near = get_close_matches(key.removeprefix(PLAN), derived, n=1, cutoff=0.4 if is_plan else 0.8)
    is_misspelt = "_" in key and suggest_key(key)
    is_word = len(key) >= SHORTEST_WORD and key.replace("_", "").isalpha()
    about = keys_about(key) if is_word and not is_misspelt else []
    if about:
        more = ", ..." if len(about) > MAX_FOUND else ""
        error.hint = f"keys about {key}: {', '.join(about[:MAX_FOUND])}{more}"
    elif near and (is_plan or not (suggest_key(key) or advice_for_near_name(key))):
        error.hint = f"did you mean {PLAN}{near[0]}?"
    elif is_plan:
        error.hint = f"values of the plan: {', '.join(derived)}"
    return error


def _key_json(info: KeyInfo, resolved: ResolvedRun) -> dict[str, Any]:
    """Return the JSON content of a key: description, type, default, value and origin.

    A section lists its keys instead. A key of a section type that the run does not use has no value and
    no origin.
    """
    values = flatten(to_dict(resolved.config))
    content: dict[str, Any] = {"key": info.path, "description": info.description, "type": info.type}
    if info.path not in all_keys():
        return {**content, "keys": [key for key in values if key.startswith(f"{info.path}.")]}
    default = _default_value(resolved.config, info) if info.path in values else info.default
    content |= {"default": to_plain(default), "choices": list(info.choices)}
    if info.tags:
        content["section_types"] = list(info.tags)
    if info.path in values:
        origin = resolved.origin(info.path)
        content["value"] = values[info.path]
        is_implied = origin == DEFAULT and content["value"] != content["default"]
        content["origin"] = {**origin._asdict(), "text": IMPLIED if is_implied else origin_text(origin)}
    return content


def _default_value(config: RunConfig, info: KeyInfo) -> object:
    """Return the default of a key, which may differ between the types of its section."""
    *sections, name = info.path.split(".")
    own = next(item for item in fields(reduce(getattr, sections, config)) if item.name == name)
    return info.default if own.default is MISSING else own.default


def _print_explanation(content: dict[str, Any], output_format: str) -> None:
    if output_format == "json":
        console.write(result_json(content))
    else:
        console.write(fold("\n".join(_text_lines(content)), console.terminal_width()))


def _text_lines(content: dict[str, Any]) -> Iterator[str]:
    yield console.paint(content["key"], "bold")
    if content.get("description"):
        yield f"  {content['description']}"
    if "keys" in content:
        yield from (f"  {key}" for key in content["keys"])
        return
    yield format_columns(list(_value_rows(content)), indent="  ")


def _value_rows(content: dict[str, Any]) -> Iterator[list[str]]:
    if "value" in content:
        yield ["value", show_value(content["value"])]
    if "reason" in content:
        yield ["reason", content["reason"]]
        return
    if "origin" in content:
        yield ["origin", content["origin"]["text"]]
    yield ["default", show_value(content["default"])]
    yield ["takes", content["type"]]
    if "section_types" in content:
        section = content["key"].rpartition(".")[0]
        yield ["only with", " or ".join(f"{section}.type: {tag}" for tag in content["section_types"])]
