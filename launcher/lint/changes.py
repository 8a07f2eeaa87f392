"""Candidate fixes for a problem in a run file, by kind of problem."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from launcher.lint import yaml_edits
from launcher.lint.text_edits import Change, Edit, apply, edited, quote_at, with_line_ends
from neobert.config import ConfigIssue, all_keys, sections
from neobert.config.key_suggestions import key_elsewhere, suggest_key
from neobert.config.migrated_files import (
    advice_for_entry,
    is_legal,
    warmup_in_force,
    yaml_text,
)
from neobert.config.migrated_keys import BETAS, advice_for_key, translated_choice, translation_of
from neobert.config.nodes import Node, find, plain

RENAMED = re.compile(r"write (\w+\.\w+)(?:: (\w+))?(?:, in optimizer steps)?")
NO_EFFECT = "remove the line"
REMOVED = "removed "
QUOTED = re.compile(r"remove the quotes: (\S+)")
HABIT = re.compile(r"YAML 1\.2 reads (\S+) as text: write (true|false)")
SHARE = "ratio"
BARE = re.compile(r"[^\s,#{}\[\]]+")


def changes(source: str, issue: ConfigIssue, root: Node, *, is_yaml: bool) -> Iterator[Change]:
    """Yield texts with a possible fix of the problem applied; nothing if there is no candidate.

    Args:
        root: the parsed text.
        is_yaml: whether lines may be moved and removed, which is safe in YAML's block style only.
    """
    node = find(root, tuple(issue.path.split(".")))
    if issue.code == "CFG003" and issue.path == "optimizer":
        yield from _opened_section(source, root, is_yaml=is_yaml)
    elif issue.code == "CFG003":
        yield from _respelt(source, issue)
    elif issue.code in ("CFG001", "CFG007") and node is not None:
        if isinstance(node.value, dict):
            yield from _renamed_section(source, issue, node, root)
            return
        if is_yaml:
            yield from _removed(source, issue, node)
            yield from _joined_betas(source, issue, root)
        if steps := warmup_in_force(tuple(issue.path.split(".")), root):
            yield from _outweighed(source, issue, steps, is_yaml=is_yaml)
            return
        yield from _written_elsewhere(source, issue, node, root, is_yaml=is_yaml)


def _respelt(source: str, issue: ConfigIssue) -> Iterator[Change]:
    """Yield the text with a quoted number, or a YAML 1.1 boolean such as `yes`, rewritten."""
    quoted, habit = QUOTED.fullmatch(issue.hint), HABIT.fullmatch(issue.hint)
    if quoted:
        for quote in quote_at(issue.source_line, issue.column):
            yield from edited(source, Edit(issue.line, issue.column, f"{quote}{quoted[1]}{quote}", quoted[1]))
    if habit:
        quote = quote_at(issue.source_line, issue.column)
        yield from edited(source, Edit(issue.line, issue.column, f"{quote}{habit[1]}{quote}", habit[2]))


def _renamed_section(source: str, issue: ConfigIssue, node: Node, root: Node) -> Iterator[Change]:
    """Rename a misspelt section if at least half of its keys belong to the suggested section."""
    name = suggest_key(issue.path)
    assert isinstance(node.value, dict)
    if "." in issue.path or name not in sections() or find(root, (name,)) is not None:
        return
    known = [key for key in node.value if f"{name}.{key}" in all_keys() or advice_for_key((name, key))]
    lines = yaml_edits.rename_section(with_line_ends(source), issue.line - 1, name)
    if lines is not None and known and 2 * len(known) >= len(node.value):
        yield Change("".join(lines), f"{issue.path} -> {name}", section=name)


def _opened_section(source: str, root: Node, *, is_yaml: bool) -> Iterator[Change]:
    """Rewrite `optimizer: NAME` as a section with the key for that name, so that it can have other keys."""
    node = find(root, ("optimizer",))
    named = None if node is None else translation_of("optim", node.value)
    if node is None or named is None or not is_yaml:
        return
    section, _, key = named.key.partition(".")
    lines = yaml_edits.open_section(with_line_ends(source), node.key.line - 1, key, named.value)
    if lines is not None:
        yield Change("".join(lines), f"{section} -> {named.key}: {named.value}")


def _joined_betas(source: str, issue: ConfigIssue, root: Node) -> Iterator[Change]:
    """Replace the line of one Adam beta by a list of both, and remove the line of the other beta."""
    section, _, name = issue.path.rpartition(".")
    if name not in BETAS or find(root, ("optimizer", "betas")) is not None:
        return
    nodes = {each: find(root, tuple(f"{section}.{each}".lstrip(".").split("."))) for each in BETAS}
    betas = [BETAS[each] if node is None else plain(node) for each, node in nodes.items()]
    others = [node.key.line - 1 for each, node in nodes.items() if node is not None and each != name]
    lines: yaml_edits.Lines | None = with_line_ends(source)
    number = issue.line - 1
    for other in others:
        lines = lines and yaml_edits.remove(lines, other)
        number -= other < number
    lines = lines and yaml_edits.move(lines, number, "optimizer.betas", yaml_text(betas))
    if lines:
        both = " and ".join(each for each, node in nodes.items() if node is not None)
        yield Change("".join(lines), f"{both} -> optimizer.betas: {yaml_text(betas)}")


def _removed(source: str, issue: ConfigIssue, node: Node) -> Iterator[Change]:
    """Remove a key that has no effect, if the advice on the key starts with `NO_EFFECT`."""
    advice = advice_for_entry(tuple(issue.path.split(".")), plain(node))
    if not advice.startswith(NO_EFFECT):
        return
    lines = yaml_edits.remove(with_line_ends(source), issue.line - 1)
    if lines is not None:
        yield Change("".join(lines), f"{REMOVED}{issue.path}: {advice.removeprefix(NO_EFFECT).lstrip('; ')}")


def _outweighed(source: str, issue: ConfigIssue, steps: int, *, is_yaml: bool) -> Iterator[Change]:
    """Remove a warm-up ratio next to a number of warm-up steps.

    In transformers the steps have priority; here the ratio would.
    """
    lines = yaml_edits.remove(with_line_ends(source), issue.line - 1) if is_yaml else None
    if lines is not None:
        yield Change("".join(lines), f"{REMOVED}{issue.path}: warmup_steps {steps} has priority over it")


def _written_elsewhere(
    source: str, issue: ConfigIssue, node: Node, root: Node, *, is_yaml: bool
) -> Iterator[Change]:
    """Rename a key of another trainer: in place if the section stays the same, else move the line."""
    target, value = _counterpart(issue.path, node)
    if not target or find(root, tuple(target.split("."))) is not None:
        return
    is_same = value == plain(node) and type(value) is type(plain(node))
    text = "" if is_same else yaml_text(value)
    suffix = f": {text}" if text else ""
    if issue.path.rpartition(".")[0] == target.rpartition(".")[0]:
        changed = _renamed_in_place(source, issue, node, target.rpartition(".")[2], text)
        if changed is not None:
            yield Change(changed, f"{issue.path} -> {target}{suffix}")
    elif is_yaml:
        lines = yaml_edits.move(with_line_ends(source), issue.line - 1, target, text or None)
        if lines is not None:
            yield Change("".join(lines), f"{issue.path} -> {target}{suffix}")


def _counterpart(key: str, node: Node) -> tuple[str, Any]:
    """Return the key of this config for a foreign key, and its converted value.

    Returns an empty key if not exactly one has the same unit, or if the value would be illegal.
    """
    name, value = key.rpartition(".")[2], plain(node)
    if known := translation_of(name, value):
        return (known.key, known.value) if is_legal(known.key, known.value) else ("", None)
    target, fixed_value = _target(key)
    if target not in all_keys() or (SHARE in name and SHARE not in target):
        return "", None
    translated = value if isinstance(value, list) else translated_choice(target, value)
    is_other = bool(fixed_value) and str(translated) != fixed_value
    return ("", None) if is_other or not is_legal(target, translated) else (target, translated)


def _target(key: str) -> tuple[str, str]:
    """Return the key to write instead, and the only value that the advice applies to; empty for any value."""
    advice = advice_for_key(tuple(key.split(".")))
    if written := RENAMED.fullmatch(advice):
        return written[1], written[2] or ""
    return ("" if advice else key_elsewhere(key)), ""


def _renamed_in_place(source: str, issue: ConfigIssue, node: Node, new: str, text: str) -> str | None:
    """Return the source with the key renamed, and the value replaced by `text` unless it is empty.

    Returns None if the source has other text at these positions.
    The value is replaced first: it is further right in the line, so that the key keeps its column.
    """
    changed: str | None = source
    if text:
        line = with_line_ends(source)[node.origin.line - 1]
        old = BARE.match(line, node.origin.column - 1)
        changed = apply(source, Edit(node.origin.line, node.origin.column, old[0], text)) if old else None
    quote = quote_at(issue.source_line, issue.column)
    old_name = issue.path.rpartition(".")[2]
    edit = Edit(issue.line, issue.column, f"{quote}{old_name}{quote}", f"{quote}{new}{quote}")
    return None if changed is None else apply(changed, edit)
