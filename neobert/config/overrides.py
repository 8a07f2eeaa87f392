"""Command-line overrides. Each override is a config layer with one key."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from neobert.config.annotations import annotation_at
from neobert.config.document import Document
from neobert.config.errors import ConfigError, ConfigIssue
from neobert.config.keys import all_keys, is_bool, type_text
from neobert.config.nodes import (
    COMMAND_LINE,
    MAX_DEPTH,
    Flaw,
    Node,
    Origin,
    Scalar,
    UnreadableError,
    scalar_flaw,
)
from neobert.config.yaml_reader import read_scalar, read_yaml

DOTTED = rf"[A-Za-z_][\w-]*(?:\.[\w-]+){{0,{MAX_DEPTH // 2}}}"
ASSIGNMENT = re.compile(rf"(--)?({DOTTED})=(.*)", re.DOTALL)
FLAG = re.compile(rf"--({DOTTED})")
QUOTED_OR_FLOW = ("[", "{", '"', "'")
SWITCHES = frozenset({"true", "false", "yes", "no", "on", "off", "null", "1", "0"})


class Override(NamedTuple):
    """Value of a key from the command line.

    Attributes:
        path: dotted key.
        text: the value as typed.
        argument: the argument as typed, for messages.
        position: position of the argument, from 1.
        column: column of the value in `argument`, from 1; of the flag if the argument has no value.
    """

    path: str
    text: str
    argument: str
    position: int
    column: int


def parse_overrides(tokens: Sequence[str]) -> tuple[Override, ...]:
    """Parse `a.b=v`, `--a.b=v`, `--a.b v`, and `--a.b` for a boolean. Raises ConfigError with exit code 2."""
    overrides: list[Override] = []
    issues: list[ConfigIssue] = []
    index = 0
    while index < len(tokens):
        token, following = tokens[index], tokens[index + 1 : index + 2]
        index += 1
        if assignment := ASSIGNMENT.fullmatch(token):
            overrides.append(Override(assignment[2], assignment[3], token, index, assignment.start(3) + 1))
        elif not (flag := FLAG.fullmatch(token)):
            issues.append(_not_an_override_issue(token, index))
        elif _takes_value(flag[1], following):
            argument = f"{token} {following[0]}"
            overrides.append(Override(flag[1], following[0], argument, index, len(token) + 2))
            index += 1
        elif _needs_value(flag[1]):
            issues.append(_missing_value_issue(token, flag[1], index))
        else:
            overrides.append(Override(flag[1], "true", token, index, 1))
    if issues:
        raise ConfigError(issues)
    return tuple(overrides)


def _takes_value(path: str, following: Sequence[str]) -> bool:
    if not following or following[0].startswith("--"):
        return False
    return not is_bool(tuple(path.split("."))) or following[0].lower() in SWITCHES


def _needs_value(path: str) -> bool:
    """Return whether a key is known and not a boolean. Unknown keys are reported later."""
    annotation = annotation_at(tuple(path.split(".")))
    return annotation is not None and not is_bool(tuple(path.split(".")))


def _not_an_override_issue(token: str, position: int) -> ConfigIssue:
    if token in all_keys():
        hint = f"write {token}=VALUE"
        return ConfigIssue("CFG003", token, f"{token} has no value", hint, COMMAND_LINE, position, 1, token)
    message = f"{token!r} is not an override"
    hint = "write section.key=value, --section.key=value or --section.key value"
    return ConfigIssue("CFG001", "", message, hint, COMMAND_LINE, position, 1, token)


def _missing_value_issue(token: str, path: str, position: int) -> ConfigIssue:
    expected = type_text(annotation_at(tuple(path.split("."))))
    hint = f"write {token} VALUE; {path} expects {expected}"
    return ConfigIssue("CFG003", path, f"{token} needs a value", hint, COMMAND_LINE, position, 1, token)


def format_text_override(path: str, text: str) -> str:
    """Return `path=text`, with quotes if YAML would parse the text as another type: `40`, `true`, `[a]/b`."""
    is_plain = not text or (_read_plain(text) == text and not text.startswith(QUOTED_OR_FLOW))
    return f"{path}={text if is_plain else json.dumps(text, ensure_ascii=False)}"


@lru_cache(maxsize=1024)
def override_layer(override: Override) -> Document:
    """Return the override as a document with one key."""
    path = tuple(override.path.split("."))
    origin = Origin("override", COMMAND_LINE, override.position, override.column)
    start = override.argument.find(override.path) + 1
    key = Origin("override", COMMAND_LINE, override.position, start)
    value, flaws = _read_value(override, origin)
    node = Node(value.value, value.origin, key)
    for name in reversed(path):
        node = Node({name: node}, key, key)
    placed = tuple(
        Flaw(flaw.code, (*path, *flaw.path), flaw.message, flaw.hint, flaw.origin) for flaw in flaws
    )
    return Document(COMMAND_LINE, "override", node, (), placed)


def _read_value(override: Override, origin: Origin) -> tuple[Node, list[Flaw]]:
    if override.text.startswith(QUOTED_OR_FLOW):
        return _read_flow(override, origin)
    value = _read_plain(override.text)
    flaw = scalar_flaw(value)
    if flaw:
        return Node(None, origin, origin), [Flaw("CFG003", (), *flaw, origin)]
    return Node(value, origin, origin), []


def _read_plain(text: str) -> Scalar:
    """Read a value without quotes; text keeps its trailing space, as in a prompt such as `query: `."""
    value = read_scalar(text.strip())
    return text.lstrip() if isinstance(value, str) else value


def _read_flow(override: Override, origin: Origin) -> tuple[Node, list[Flaw]]:
    """Parse the value of an override that is a quoted string, a list or a mapping in YAML's flow style."""
    try:
        root, flaws = read_yaml(override.text, COMMAND_LINE, "override")
    except UnreadableError as error:
        place = Origin("override", COMMAND_LINE, origin.line, origin.column + max(error.column, 1) - 1)
        hint = (
            error.hint or "quote the value twice: double quotes for YAML, inside single quotes for the shell"
        )
        return Node(None, origin, origin), [Flaw("CFG003", (), error.message, hint, place)]
    assert root is not None
    return _shift_node(root, origin), [
        Flaw(flaw.code, flaw.path, flaw.message, flaw.hint, _shift_origin(flaw.origin, origin))
        for flaw in flaws
    ]


def _shift_node(node: Node, start: Origin) -> Node:
    value = node.value
    if isinstance(value, dict):
        value = {name: _shift_node(child, start) for name, child in value.items()}
    elif isinstance(value, tuple):
        value = tuple(_shift_node(child, start) for child in value)
    return Node(value, _shift_origin(node.origin, start), _shift_origin(node.key, start))


def _shift_origin(origin: Origin, start: Origin) -> Origin:
    return Origin("override", COMMAND_LINE, start.line, origin.column + start.column - 1)
