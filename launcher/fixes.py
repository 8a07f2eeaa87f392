"""Safe fixes: text edits at the place of a problem, which keep comments and everything else as they are.

A fix is kept only when the file then has fewer problems and no new ones.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.files import write_bytes
from neobert.config import ConfigError, ConfigIssue, all_keys
from neobert.config.document import LINE_BREAK, load_document
from neobert.config.tree import find
from neobert.errors import ProjectError
from profiles.registry import resolve_run

RENAMED = re.compile(r"write ([a-z_]+(?:\.[a-z_]+)*)(?:, in optimizer steps)?")
QUOTED = re.compile(r"remove the quotes: (\S+)")
HABIT = re.compile(r"YAML 1\.2 reads (\S+) as text: write (true|false)")
SHARE = "ratio"


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in a line. Lines and columns count from 1."""

    line: int
    column: int
    old: str
    new: str

    def fits(self, text: str) -> bool:
        """Whether the line says what is to be replaced, at that column, as a whole word."""
        start, stop = self.column - 1, self.column - 1 + len(self.old)
        return text[start:stop] == self.old and not re.match(r"[\w.-]", text[stop : stop + 1])


def fix_file(path: Path) -> list[str]:
    """Mend what can be mended safely. Returns one line for each fix, with its place."""
    issues = _issues(path)
    source = _read(path) if issues else ""
    done: list[str] = []
    for issue in sorted(issues, key=lambda issue: (issue.line, issue.column), reverse=True):
        edit = next((edit for edit in edits_for(issue, path) if issue.file == str(path)), None)
        mended = apply(source, edit) if edit else None
        if edit and mended and _is_better(mended, path, before=_issues_of_text(source, path)):
            source = mended
            done.append(f"{path}:{edit.line}:{edit.column}: {issue.code} {edit.old} -> {edit.new}")
    if done:
        _write(path, source)
    return list(reversed(done))


def edits_for(issue: ConfigIssue, path: Path) -> list[Edit]:
    """What may be written in place of the text at the problem's place; nothing where no fix is safe."""
    if issue.code == "CFG007":
        return _rename(issue, path)
    hint = QUOTED.fullmatch(issue.hint)
    if issue.code == "CFG003" and hint:
        return [
            Edit(issue.line, issue.column, f"{quote}{hint[1]}{quote}", hint[1]) for quote in _quote_at(issue)
        ]
    habit = HABIT.fullmatch(issue.hint)
    if issue.code == "CFG003" and habit:
        quote = "".join(_quote_at(issue))
        return [Edit(issue.line, issue.column, f"{quote}{habit[1]}{quote}", habit[2])]
    return []


def _quote_at(issue: ConfigIssue) -> list[str]:
    return [quote for quote in issue.source_line[issue.column - 1 : issue.column] if quote in "\"'"]


def _rename(issue: ConfigIssue, path: Path) -> list[Edit]:
    """A new name within the section, of the same unit, that the file does not have yet."""
    advice = RENAMED.fullmatch(issue.hint)
    if not advice or advice[1] not in all_keys():
        return []
    section, _, old = issue.path.rpartition(".")
    new_section, _, new = advice[1].rpartition(".")
    is_taken = find(load_document(path).root, tuple(advice[1].split("."))) is not None
    if section != new_section or is_taken or (SHARE in old and SHARE not in new):
        return []
    quote = "".join(_quote_at(issue))
    return [Edit(issue.line, issue.column, f"{quote}{old}{quote}", f"{quote}{new}{quote}")]


def apply(source: str, edit: Edit) -> str | None:
    """The text with one edit, or None where the text at that place is another one."""
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


def _is_better(source: str, path: Path, before: Sequence[ConfigIssue]) -> bool:
    after = _issues_of_text(source, path)
    return len(after) < len(before) and _keys(after) <= _keys(before)


def _keys(issues: Iterable[ConfigIssue]) -> set[tuple[str, str]]:
    return {(issue.code, issue.path) for issue in issues}


def _issues_of_text(source: str, path: Path) -> tuple[ConfigIssue, ...]:
    """Resolve a text as if it stood at the path: under its name, which a profile's name has to match."""
    with tempfile.TemporaryDirectory(prefix="neobert-fix-") as folder:
        trial = Path(folder, path.name)
        trial.write_bytes(source.encode("utf-8"))
        return _issues(trial)


def _issues(path: Path) -> tuple[ConfigIssue, ...]:
    try:
        resolve_run(None, [path])
    except ConfigError as error:
        return error.issues
    except ProjectError:
        return ()
    return ()


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8")


def _write(path: Path, source: str) -> None:
    """Replace the file in one step, keeping its mode; a link keeps pointing at it."""
    target = path.resolve()
    mode = target.stat().st_mode
    write_bytes(target, source.encode("utf-8"))
    target.chmod(mode)
