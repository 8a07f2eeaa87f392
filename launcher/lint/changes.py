"""Candidate fixes for a problem in a run file, by kind of problem."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from launcher.lint.line_edits import (
    Edit,
    Lines,
    add_key_line,
    apply_edit,
    line_ending,
    move_key_line,
    open_section,
    remove_key_line,
    rename_section,
    split_lines,
)
from neobert.config import ConfigIssue, all_keys, sections
from neobert.config.key_suggestions import key_in_other_section, suggest_key
from neobert.config.migrated_files import (
    advice_for_entry,
    is_accepted_value,
    overriding_warmup_steps,
    yaml_text,
)
from neobert.config.migrated_keys import (
    BETAS,
    advice_for_key,
    advice_for_value,
    translate_entry,
    translated_choice,
)
from neobert.config.nodes import Node, find, to_plain_value

RENAMED = re.compile(r"write (\w+\.\w+)(?:: (\w+))?(?:, in optimizer steps)?")
RENAMED_TO_TWO = re.compile(r"write (\w+\.\w+) and (\w+\.\w+)")
COUNTERPART = re.compile(r"write ([\w./-]+)")
NO_EFFECT = "remove the line"
REMOVED = "removed "
QUOTED = re.compile(r"remove the quotes: (\S+)")
HABIT = re.compile(r"YAML 1\.2 reads (\S+) as text: write (true|false)")
SHARE = "ratio"
AS_TEXT = {"optimizer": "optim", "adapter": "adapter"}
"""Sections that other trainers write as one word, and the foreign key whose values these words are."""
BARE = re.compile(r"[^\s,#{}\[\]]+")
RUN_NAME, RUN_NAME_HERE = "{run_name}", "wandb.name"
"""Placeholder of the run name in Composer's paths, and the key here for its run_name."""


def candidate_changes(source: str, issue: ConfigIssue, root: Node, *, is_yaml: bool) -> Iterator[Change]:
    """Yield changes that may fix the problem, or none if there is no candidate.

    Args:
        root: the parsed `source`.
        is_yaml: whether lines may be moved and removed, which is safe in YAML's block style only.
    """
    node = find(root, tuple(issue.path.split(".")))
    if issue.code == "CFG003" and issue.path in AS_TEXT:
        yield from _expand_section(source, issue.path, root, is_yaml=is_yaml)
    elif issue.code == "CFG003":
        yield from _respell_value(source, issue)
        if node is not None:
            yield from _translate_value(source, issue, node, default_quote="" if is_yaml else '"')
    elif issue.code in ("CFG001", "CFG007") and node is not None:
        if isinstance(node.value, dict):
            yield from _correct_section_name(source, issue, node, root)
            return
        if is_yaml:
            yield from _remove_key_without_effect(source, issue, node)
            yield from _join_betas(source, issue, root)
            yield from _translate_to_two_keys(source, issue, node, root)
        if steps := overriding_warmup_steps(tuple(issue.path.split(".")), root):
            yield from _remove_warmup_ratio(source, issue, steps, is_yaml=is_yaml)
            return
        yield from _translate_key(source, issue, node, root, is_yaml=is_yaml)


def _respell_value(source: str, issue: ConfigIssue) -> Iterator[Change]:
    """Yield the text with a quoted number, or a YAML 1.1 boolean such as `yes`, rewritten."""
    quoted, habit = QUOTED.fullmatch(issue.hint), HABIT.fullmatch(issue.hint)
    if quoted:
        for quote in _quote_at(issue.source_line, issue.column):
            yield from edit_changes(
                source, Edit(issue.line, issue.column, f"{quote}{quoted[1]}{quote}", quoted[1])
            )
    if habit:
        quote = _quote_at(issue.source_line, issue.column)
        yield from edit_changes(source, Edit(issue.line, issue.column, f"{quote}{habit[1]}{quote}", habit[2]))


def _translate_value(source: str, issue: ConfigIssue, node: Node, *, default_quote: str) -> Iterator[Change]:
    """Yield the text with a value of another trainer replaced by its counterpart here, in the same quotes."""
    old = BARE.match(issue.source_line, issue.column - 1)
    new = _counterpart(issue.path, to_plain_value(node))
    if old and new:
        quote = _quote_at(issue.source_line, issue.column) or default_quote
        yield from edit_changes(source, Edit(issue.line, issue.column, old[0], f"{quote}{new}{quote}"))


def _counterpart(key: str, value: Any) -> str:
    """Return the value here for another trainer's value, as YAML; empty unless there is exactly one."""
    if written := COUNTERPART.fullmatch(advice_for_value(key, value)):
        return written[1]
    meant = translate_entry(key.rpartition(".")[2], value)
    return (
        yaml_text(meant.value) if meant and meant.key == key and is_accepted_value(key, meant.value) else ""
    )


def _correct_section_name(source: str, issue: ConfigIssue, node: Node, root: Node) -> Iterator[Change]:
    """Rename a misspelt section if at least half of its keys belong to the suggested section."""
    name = suggest_key(issue.path)
    assert isinstance(node.value, dict)
    if "." in issue.path or name not in sections() or find(root, (name,)) is not None:
        return
    known = [key for key in node.value if f"{name}.{key}" in all_keys() or advice_for_key((name, key))]
    lines = rename_section(split_lines(source), issue.line - 1, name)
    if lines is not None and known and 2 * len(known) >= len(node.value):
        yield Change("".join(lines), f"{issue.path} -> {name}", section=name)


def _expand_section(source: str, name: str, root: Node, *, is_yaml: bool) -> Iterator[Change]:
    """Rewrite `optimizer: NAME` as a section with the key for that name, so that it can have other keys."""
    node = find(root, (name,))
    named = None if node is None else translate_entry(AS_TEXT[name], node.value)
    if node is None or named is None or not is_yaml:
        return
    section, _, key = named.key.partition(".")
    lines = open_section(split_lines(source), node.key.line - 1, key, named.value)
    if lines is not None:
        yield Change("".join(lines), f"{section} -> {named.key}: {named.value}")


def _join_betas(source: str, issue: ConfigIssue, root: Node) -> Iterator[Change]:
    """Replace the line of one Adam beta with a list of both, and remove the line of the other beta."""
    section, _, name = issue.path.rpartition(".")
    if name not in BETAS or find(root, ("optimizer", "betas")) is not None:
        return
    nodes = {each: find(root, tuple(f"{section}.{each}".lstrip(".").split("."))) for each in BETAS}
    betas = [BETAS[each] if node is None else to_plain_value(node) for each, node in nodes.items()]
    others = [node.key.line - 1 for each, node in nodes.items() if node is not None and each != name]
    lines: Lines | None = split_lines(source)
    number = issue.line - 1
    for other in others:
        lines = lines and remove_key_line(lines, other)
        number -= other < number
    lines = lines and move_key_line(lines, number, "optimizer.betas", yaml_text(betas))
    if lines:
        both = " and ".join(each for each, node in nodes.items() if node is not None)
        yield Change("".join(lines), f"{both} -> optimizer.betas: {yaml_text(betas)}")


def _translate_to_two_keys(source: str, issue: ConfigIssue, node: Node, root: Node) -> Iterator[Change]:
    """Replace another trainer's length key with two keys: the text length and the number of positions.

    A key that already has this value stays. A model of transformers has its own number of positions, so that
    its file gets only the first key.
    """
    written, value = RENAMED_TO_TWO.fullmatch(advice_for_key(tuple(issue.path.split(".")))), node.value
    if written is None or not all(is_accepted_value(target, value) for target in written.groups()):
        return
    set_nodes = {target: find(root, tuple(target.split("."))) for target in written.groups()}
    model_type = find(root, ("model", "type"))
    missing = [target for target, found in set_nodes.items() if found is None]
    if model_type is not None and model_type.value == "hf":
        missing = [target for target in missing if target == written[1]]
    if not missing or any(found is not None and found.value != value for found in set_nodes.values()):
        return
    lines = move_key_line(split_lines(source), issue.line - 1, missing[0], None)
    for target in missing[1:]:
        lines = lines and add_key_line(lines, target, yaml_text(value), end=line_ending(lines[0]))
    if lines:
        summary = " and ".join(f"{target}: {yaml_text(value)}" for target in missing)
        yield Change("".join(lines), f"{issue.path} -> {summary}")


def _remove_key_without_effect(source: str, issue: ConfigIssue, node: Node) -> Iterator[Change]:
    """Remove the line of a key if the advice on the key is to remove it."""
    advice = advice_for_entry(tuple(issue.path.split(".")), to_plain_value(node))
    if not advice.startswith(NO_EFFECT):
        return
    lines = remove_key_line(split_lines(source), issue.line - 1)
    if lines is not None:
        yield Change("".join(lines), f"{REMOVED}{issue.path}: {advice.removeprefix(NO_EFFECT).lstrip('; ')}")


def _remove_warmup_ratio(source: str, issue: ConfigIssue, steps: int, *, is_yaml: bool) -> Iterator[Change]:
    """Remove a warm-up ratio next to a number of warm-up steps.

    In transformers the steps have priority; here the ratio would.
    """
    lines = remove_key_line(split_lines(source), issue.line - 1) if is_yaml else None
    if lines is not None:
        yield Change("".join(lines), f"{REMOVED}{issue.path}: warmup_steps {steps} has priority over it")


def _translate_key(
    source: str, issue: ConfigIssue, node: Node, root: Node, *, is_yaml: bool
) -> Iterator[Change]:
    """Rename a key of another trainer: in place if the section stays the same, else move the line."""
    target, value = _translated_key_and_value(issue.path, node)
    if isinstance(value, str) and RUN_NAME in value:
        name = find(root, ("run_name",)) or find(root, tuple(RUN_NAME_HERE.split(".")))
        if name is None:
            return
        value = value.replace(RUN_NAME, str(to_plain_value(name)))
    if not target or find(root, tuple(target.split("."))) is not None:
        return
    is_same = value == to_plain_value(node) and type(value) is type(to_plain_value(node))
    text = "" if is_same else yaml_text(value)
    suffix = f": {text}" if text else ""
    if issue.path.rpartition(".")[0] == target.rpartition(".")[0]:
        changed = _rename_in_place(source, issue, node, target.rpartition(".")[2], text)
        if changed is not None:
            yield Change(changed, f"{issue.path} -> {target}{suffix}")
    elif is_yaml:
        lines = move_key_line(split_lines(source), issue.line - 1, target, text or None)
        if lines is not None:
            yield Change("".join(lines), f"{issue.path} -> {target}{suffix}")


def _translated_key_and_value(key: str, node: Node) -> tuple[str, Any]:
    """Return the key of this config for a foreign key, and its converted value.

    Returns an empty key unless exactly one key has the same unit and the value is allowed.
    """
    name, value = key.rpartition(".")[2], to_plain_value(node)
    if known := translate_entry(name, value):
        return (known.key, known.value) if is_accepted_value(known.key, known.value) else ("", None)
    target, fixed_value = _advised_key(key)
    if target not in all_keys() or (SHARE in name and SHARE not in target):
        return "", None
    translated = value if isinstance(value, list) else translated_choice(target, value)
    is_other = bool(fixed_value) and str(translated) != fixed_value
    return ("", None) if is_other or not is_accepted_value(target, translated) else (target, translated)


def _advised_key(key: str) -> tuple[str, str]:
    """Return the key to write instead, and the only value for which the advice holds.

    The value is empty if the advice holds for any value; both are empty if there is no key to write.
    """
    advice = advice_for_key(tuple(key.split(".")))
    if written := RENAMED.fullmatch(advice):
        return written[1], written[2] or ""
    return ("" if advice else key_in_other_section(key)), ""


def _rename_in_place(source: str, issue: ConfigIssue, node: Node, new: str, text: str) -> str | None:
    """Return the source with the key renamed, and the value replaced by `text` unless it is empty.

    Returns None if the source has other text at these positions.
    The value is replaced first: it is further right in the line, so that the key keeps its column.
    """
    changed: str | None = source
    if text:
        line = split_lines(source)[node.origin.line - 1]
        old = BARE.match(line, node.origin.column - 1)
        changed = (
            apply_edit(source, Edit(node.origin.line, node.origin.column, old[0], text)) if old else None
        )
    quote = _quote_at(issue.source_line, issue.column)
    old_name = issue.path.rpartition(".")[2]
    edit = Edit(issue.line, issue.column, f"{quote}{old_name}{quote}", f"{quote}{new}{quote}")
    return None if changed is None else apply_edit(changed, edit)


@dataclass(frozen=True, slots=True)
class Change:
    """Result of one fix.

    Attributes:
        source: text of the file after the fix.
        section: new name of a renamed section; empty for any other fix.
    """

    source: str
    summary: str
    section: str = ""


def edit_changes(source: str, edit: Edit) -> Iterator[Change]:
    """Yield the source with one edit applied, or nothing if it has other text at that position."""
    changed = apply_edit(source, edit)
    if changed is not None:
        yield Change(changed, f"{edit.old} -> {edit.new}")


def _quote_at(line: str, column: int) -> str:
    """Return the quote character at a column, counted from 1, or an empty string."""
    return line[column - 1 : column] if line[column - 1 : column] in ("'", '"') else ""
