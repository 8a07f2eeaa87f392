"""Safe fixes: text edits at the place of a problem, which keep comments and everything else as they are.

A fix is kept only when the file then has fewer problems and no new ones. Guesses are left to people.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from launcher.io.files import write_bytes
from launcher.lint import yaml_edits
from neobert.config import ConfigError, ConfigIssue, all_keys, sections
from neobert.config.document import LINE_BREAK, load_document
from neobert.config.key_suggestions import keys_named, suggest_key
from neobert.config.migrated_files import advice_for_entry, in_our_words, is_legal, yaml_text
from neobert.config.migrated_keys import advice_for_key
from neobert.config.nodes import Node, find, plain
from neobert.config.translations import BETAS, OPTIMIZER, translation_of
from neobert.errors import ProjectError
from neobert.printable import printable
from profiles.registry import resolve_run

RENAMED = re.compile(r"write (\w+\.\w+)(?:: (\w+))?(?:, in optimizer steps)?")
NO_EFFECT = "remove the line"
QUOTED = re.compile(r"remove the quotes: (\S+)")
HABIT = re.compile(r"YAML 1\.2 reads (\S+) as text: write (true|false)")
SHARE = "ratio"
BARE = re.compile(r"[^\s,#{}\[\]]+")
MOST_FIXES = 200
FIXABLE = ("CFG001", "CFG003", "CFG007")
"""Codes of problems that have fixes."""

T = TypeVar("T")
Issues = tuple[ConfigIssue, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in a line. Lines and columns count from 1."""

    line: int
    column: int
    old: str
    new: str

    def fits(self, text: str) -> bool:
        """Return whether the line has the text to replace at that column, as a whole word."""
        start, stop = self.column - 1, self.column - 1 + len(self.old)
        return text[start:stop] == self.old and not re.match(r"[\w.-]", text[stop : stop + 1])


@dataclass(frozen=True, slots=True)
class Fixed:
    """Applied fixes of a file, one line each with location, and the number of problems."""

    done: tuple[str, ...]
    num_problems: int


@dataclass(frozen=True, slots=True)
class Change:
    """A text after one fix, what the fix did in a few words, and the section that it named, if any."""

    source: str
    summary: str
    section: str = ""


def fix_file(path: Path) -> Fixed:
    """Apply safe fixes in place, one after the other, until none is left."""
    source, before, done, left = _fixed(path)
    if done:
        _write(path, source)
    return Fixed(tuple(_told(path, before, done)), len(done) + len(left))


def fixable(path: Path) -> frozenset[tuple[str, str]]:
    """Return code and key of the problems that `fix_file` would fix."""
    return frozenset(_fixed(path)[2])


def _fixed(path: Path) -> tuple[str, Issues, dict[tuple[str, str], str], Issues]:
    """Return the text after all fixes, the problems before, what was done for each, and the problems left."""
    before = issues = _issues(path) or ()
    if not any(issue.code in FIXABLE for issue in issues):  # also a file that cannot be read
        return "", before, {}, before
    source = _read(path)
    done: dict[tuple[str, str], str] = {}
    refused: set[tuple[str, str]] = set()
    while len(done) < MOST_FIXES and (issue := _next(issues, path, refused)):
        change, after = next(_safe(source, issue, path, issues), (None, issues))
        if change is None:
            refused.add(_key(issue))
            continue
        source, issues = change.source, after
        done[_key(issue)] = change.summary
    return source, before, done, issues


def _told(path: Path, before: Issues, done: dict[tuple[str, str], str]) -> Iterator[str]:
    """Yield one line per fix, with its place before any of them; later issues have none."""
    places = {_key(issue): f":{issue.line}:{issue.column}" for issue in reversed(before)}
    for key, summary in done.items():
        yield printable(f"{path}{places.get(key, '')}: {key[0]} {summary}")


def _next(issues: Issues, path: Path, refused: set[tuple[str, str]]) -> ConfigIssue | None:
    """Return the next problem to try: first a section that has a value, as keys may have to move there."""
    candidates = [issue for issue in issues if issue.file == str(path) and _key(issue) not in refused]
    return min(candidates, key=lambda issue: issue.path != "optimizer", default=None)


def _safe(source: str, issue: ConfigIssue, path: Path, before: Issues) -> Iterator[tuple[Change, Issues]]:
    """Yield changes after which there are fewer problems and no new ones, with the problems that are left."""
    known = {_key(each) for each in before}
    for change in _changes(source, issue, path):
        after = _issues_of_text(change.source, path)
        if after is None:
            continue
        new = {key for key in map(_key, after) if key not in known}
        # The keys of a section get their problems once the section has its name.
        is_new_allowed = change.section and all(key[1].startswith(f"{change.section}.") for key in new)
        if is_new_allowed or (len(after) < len(before) and not new):
            yield change, after


def _changes(source: str, issue: ConfigIssue, path: Path) -> Iterator[Change]:
    """Yield what may be written in place of the text at the problem's place; nothing if no fix is safe."""
    if issue.code == "CFG003" and issue.path == "optimizer":
        yield from _opened_section(source, path)
    elif issue.code == "CFG003":
        yield from _respelt(source, issue)
    elif issue.code in ("CFG001", "CFG007"):
        document = _at(path, source, load_document)
        node = find(document.root, tuple(issue.path.split(".")))
        if node is None:
            return
        if isinstance(node.value, dict):
            yield from _renamed_section(source, issue, node, document.root)
        else:
            yield from _removed(source, issue, node, path)
            yield from _joined_betas(source, issue, document.root, path)
            yield from _written_elsewhere(source, issue, node, document.root, path)


def _respelt(source: str, issue: ConfigIssue) -> Iterator[Change]:
    """Yield text that was meant as a number or a switch."""
    quoted, habit = QUOTED.fullmatch(issue.hint), HABIT.fullmatch(issue.hint)
    if quoted:
        for quote in _quote_at(issue.source_line, issue.column):
            yield from _edited(
                source, Edit(issue.line, issue.column, f"{quote}{quoted[1]}{quote}", quoted[1])
            )
    if habit:
        quote = _quote_at(issue.source_line, issue.column)
        yield from _edited(source, Edit(issue.line, issue.column, f"{quote}{habit[1]}{quote}", habit[2]))


def _quote_at(line: str, column: int) -> str:
    return line[column - 1 : column] if line[column - 1 : column] in ("'", '"') else ""


def _edited(source: str, edit: Edit) -> Iterator[Change]:
    changed = apply(source, edit)
    if changed is not None:
        yield Change(changed, f"{edit.old} -> {edit.new}")


def _renamed_section(source: str, issue: ConfigIssue, node: Node, root: Node) -> Iterator[Change]:
    """Rename a section with a near name if at least half of its keys belong to the section meant."""
    name = suggest_key(issue.path)
    assert isinstance(node.value, dict)
    if "." in issue.path or name not in sections() or find(root, (name,)) is not None:
        return
    known = [key for key in node.value if f"{name}.{key}" in all_keys() or advice_for_key((name, key))]
    lines = yaml_edits.rename_section(_with_line_ends(source), issue.line - 1, name)
    if lines is not None and known and 2 * len(known) >= len(node.value):
        yield Change("".join(lines), f"{issue.path} -> {name}", section=name)


def _opened_section(source: str, path: Path) -> Iterator[Change]:
    """Write `optimizer: NAME` as a section with that name, so that other keys have a place in it."""
    node = find(_at(path, source, load_document).root, ("optimizer",))
    named = None if node is None else OPTIMIZER(node.value)
    if node is None or named is None or not _is_yaml(path):
        return
    section, _, key = named.key.partition(".")
    lines = yaml_edits.open_section(_with_line_ends(source), node.key.line - 1, key, named.value)
    if lines is not None:
        yield Change("".join(lines), f"{section} -> {named.key}: {named.value}")


def _joined_betas(source: str, issue: ConfigIssue, root: Node, path: Path) -> Iterator[Change]:
    """Write both betas as one list, in place of the line of the one and instead of the line of the other."""
    section, _, name = issue.path.rpartition(".")
    if name not in BETAS or not _is_yaml(path) or find(root, ("optimizer", "betas")) is not None:
        return
    nodes = {each: find(root, tuple(f"{section}.{each}".lstrip(".").split("."))) for each in BETAS}
    betas = [BETAS[each] if node is None else plain(node) for each, node in nodes.items()]
    others = [node.key.line - 1 for each, node in nodes.items() if node is not None and each != name]
    lines: yaml_edits.Lines | None = _with_line_ends(source)
    number = issue.line - 1
    for other in others:
        lines = lines and yaml_edits.remove(lines, other)
        number -= other < number
    lines = lines and yaml_edits.move(lines, number, "optimizer.betas", yaml_text(betas))
    if lines:
        both = " and ".join(each for each, node in nodes.items() if node is not None)
        yield Change("".join(lines), f"{both} -> optimizer.betas: {yaml_text(betas)}")


def _removed(source: str, issue: ConfigIssue, node: Node, path: Path) -> Iterator[Change]:
    """Remove a key that has no effect here: the advice begins with its removal."""
    advice = advice_for_entry(tuple(issue.path.split(".")), plain(node))
    if not advice.startswith(NO_EFFECT) or not _is_yaml(path):
        return
    lines = yaml_edits.remove(_with_line_ends(source), issue.line - 1)
    if lines is not None:
        yield Change("".join(lines), f"removed {issue.path}: {advice.removeprefix(NO_EFFECT).lstrip('; ')}")


def _written_elsewhere(
    source: str, issue: ConfigIssue, node: Node, root: Node, path: Path
) -> Iterator[Change]:
    """Write the key under its name here: in place within a section, else moved to the other section."""
    target, value = _counterpart(issue.path, node)
    if not target or find(root, tuple(target.split("."))) is not None:
        return
    is_same = value == plain(node) and type(value) is type(plain(node))
    text = "" if is_same else yaml_text(value)
    told = f": {text}" if text else ""
    if issue.path.rpartition(".")[0] == target.rpartition(".")[0]:
        changed = _renamed_in_place(source, issue, node, target.rpartition(".")[2], text)
        if changed is not None:
            yield Change(changed, f"{issue.path} -> {target}{told}")
    elif _is_yaml(path):
        lines = yaml_edits.move(_with_line_ends(source), issue.line - 1, target, text or None)
        if lines is not None:
            yield Change("".join(lines), f"{issue.path} -> {target}{told}")


def _counterpart(key: str, node: Node) -> tuple[str, Any]:
    """Return the one key that takes the value, in the same unit, and the value; empty without one."""
    name, value = key.rpartition(".")[2], plain(node)
    if known := translation_of(name, value):
        return (known.key, known.value) if is_legal(known.key, known.value) else ("", None)
    target, fixed_value = _target(key)
    if target not in all_keys() or (SHARE in name and SHARE not in target):
        return "", None
    translated = value if isinstance(value, list) else in_our_words(target, value)
    is_other = bool(fixed_value) and str(translated) != fixed_value
    return ("", None) if is_other or not is_legal(target, translated) else (target, translated)


def _target(key: str) -> tuple[str, str]:
    """Return the key to write, and the one value that the advice is about."""
    advice = advice_for_key(tuple(key.split(".")))
    if written := RENAMED.fullmatch(advice):
        return written[1], written[2] or ""
    named = [] if advice else keys_named(key.rpartition(".")[2])
    return (named[0] if len(named) == 1 else ""), ""


def _renamed_in_place(source: str, issue: ConfigIssue, node: Node, new: str, text: str) -> str | None:
    """Write another name, and the value first if it has another text: it comes later in the line."""
    changed: str | None = source
    if text:
        line = _with_line_ends(source)[node.origin.line - 1]
        old = BARE.match(line, node.origin.column - 1)
        changed = apply(source, Edit(node.origin.line, node.origin.column, old[0], text)) if old else None
    quote = _quote_at(issue.source_line, issue.column)
    old_name = issue.path.rpartition(".")[2]
    edit = Edit(issue.line, issue.column, f"{quote}{old_name}{quote}", f"{quote}{new}{quote}")
    return None if changed is None else apply(changed, edit)


def _is_yaml(path: Path) -> bool:
    return path.suffix.lower() in (".yaml", ".yml")


def apply(source: str, edit: Edit) -> str | None:
    """Return the text with one edit; None if the text at that place is different."""
    lines = _with_line_ends(source)
    if edit.line > len(lines) or not edit.fits(lines[edit.line - 1]):
        return None
    text = lines[edit.line - 1]
    start = edit.column - 1
    lines[edit.line - 1] = text[:start] + edit.new + text[start + len(edit.old) :]
    return "".join(lines)


def _with_line_ends(source: str) -> list[str]:
    ends = [match.end() for match in LINE_BREAK.finditer(source)]
    return [source[start:stop] for start, stop in zip([0, *ends], [*ends, len(source)], strict=True)]


def _key(issue: ConfigIssue) -> tuple[str, str]:
    return issue.code, issue.path


def _at(path: Path, source: str, use: Callable[[Path], T]) -> T:
    """Use a text as if it stood at the path: under its name, which a profile's name has to match."""
    with tempfile.TemporaryDirectory(prefix="neobert-fix-") as folder:
        trial = Path(folder, path.name)
        trial.write_bytes(source.encode("utf-8"))
        return use(trial)


def _issues_of_text(source: str, path: Path) -> Issues | None:
    """Return the problems of a text, placed in the file; None for a text that cannot be judged."""

    def judge(trial: Path) -> Issues | None:
        found = _issues(trial)
        ours = str(trial)
        return found and tuple(replace(each, file=str(path)) if each.file == ours else each for each in found)

    return _at(path, source, judge)


def _issues(path: Path) -> Issues | None:
    try:
        resolve_run(None, [path])
    except ConfigError as error:
        return error.issues
    except ProjectError:
        return None
    return ()


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8")


def _write(path: Path, source: str) -> None:
    """Replace the file in one step, keeping its mode; a link keeps pointing at it."""
    target = path.resolve()
    mode = target.stat().st_mode
    write_bytes(target, source.encode("utf-8"))
    target.chmod(mode)
