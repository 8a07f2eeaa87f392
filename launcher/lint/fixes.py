"""Safe fixes: text edits at the location of a problem, which leave comments and all other text unchanged.

A fix is kept only when the file then has fewer problems and no new ones. Guesses are not applied.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from launcher.io.files import write_bytes
from launcher.lint.changes import AS_TEXT, REMOVED, Change, candidate_changes
from neobert.config import ConfigError, ConfigIssue
from neobert.config.document import load_document
from neobert.config.migrated_files import without_paths
from neobert.config.nodes import find, to_plain_value
from neobert.errors import ProjectError
from neobert.printable import printable
from profiles.registry import ResolvedRun, resolve_run

MAX_FIXES = 200
FIXABLE = ("CFG001", "CFG003", "CFG007")
"""Codes of problems that have fixes."""

UNLIMITED, STEPS, EPOCHS = "max_steps", "trainer.max_steps", "-> trainer.max_epochs"
"""Key of transformers, whose -1 lets epochs end the run; the key here; the end of this fix's summary."""

ROWS, RATE = "-> trainer.per_device_train_batch_size", "-> optimizer.lr"
"""Ends of the summaries of fixes: of the rows per microbatch, and of the learning rate."""
PACKED = (
    "trainer.per_device_train_batch_size counts rows, and a row holds several short texts: an epoch has "
    "fewer steps than with a text in each row, as `neobert-launch plan` shows"
)
RECIPE = (
    "optimizer.weight_decay",
    "optimizer.betas",
    "scheduler.name",
    "scheduler.final_lr_ratio",
    "trainer.gradient_clipping",
    "datacollator.pack_sequences",
)
"""Settings next to the learning rate whose defaults differ between trainers."""

T = TypeVar("T")
Issues = tuple[ConfigIssue, ...]


@dataclass(frozen=True, slots=True)
class AppliedFixes:
    """Applied fixes of a file, one line each with location, and the number of problems before the fixes.

    `notes` are about unset keys that the other trainer may set to other values.
    """

    done: tuple[str, ...]
    num_problems: int
    notes: tuple[str, ...] = ()


def fix_file(path: Path) -> AppliedFixes:
    """Apply safe fixes in place, at most `MAX_FIXES` of them; an unreadable file is left unchanged."""
    source, before, done, left = _apply_all_fixes(path)
    if done:
        # an atomic replacement would drop the mode, and replace a symlink in place of its target
        target = path.resolve()
        mode = target.stat().st_mode
        write_bytes(target, source.encode("utf-8"))
        target.chmod(mode)
    run = _resolve_without_problems(path) if done else None
    notes = (
        _note_on_step_limit(path, done, run),
        _note_on_packing(path, done, run),
        _note_on_recipe(path, done),
    )
    return AppliedFixes(
        tuple(_fix_lines(path, before, done)), len(done) + len(left), tuple(filter(None, notes))
    )


def fixable_problems(path: Path) -> frozenset[tuple[str, str]]:
    """Return the code and key of each problem that `fix_file` would fix."""
    return frozenset(_apply_all_fixes(path)[2])


def _apply_all_fixes(path: Path) -> tuple[str, Issues, dict[tuple[str, str], str], Issues]:
    """Return the fixed text, the problems before, a summary of each fix by problem, and the problems left."""
    before = issues = _read_issues(path) or ()
    if not any(issue.code in FIXABLE for issue in issues):  # also a file that cannot be read
        return "", before, {}, before
    source = path.read_bytes().decode("utf-8")
    done: dict[tuple[str, str], str] = {}
    refused: set[tuple[str, str]] = set()
    while len(done) < MAX_FIXES and (issue := _next_problem(issues, path, refused)):
        change, after = next(_safe_changes(source, issue, path, issues), (None, issues))
        if change is None:
            refused.add(_problem_key(issue))
            continue
        source, issues = change.source, after
        done[_problem_key(issue)] = change.summary
    return source, before, done, issues


def _fix_lines(path: Path, before: Issues, done: dict[tuple[str, str], str]) -> Iterator[str]:
    """Yield one line per fix, with its location in the original text unless the problem appeared later."""
    places = {_problem_key(issue): f":{issue.line}:{issue.column}" for issue in reversed(before)}
    for key, summary in done.items():
        yield printable(f"{path}{places.get(key, '')}: {key[0]} {summary}")


def _note_on_step_limit(path: Path, done: dict[tuple[str, str], str], run: ResolvedRun | None) -> str:
    """Return a note on the step limit of the run if its file set only epochs, else an empty string."""
    was_open = any(
        EPOCHS in each or (key.rpartition(".")[2] == UNLIMITED and each.startswith(REMOVED))
        for (_, key), each in done.items()
    )
    if not was_open or run is None:
        return ""
    limits, origin = run.config.trainer, run.origin(STEPS)
    if origin.kind == "file":
        return ""
    source = "the default" if origin.kind == "default" else f"from {Path(origin.file).name}:{origin.line}"
    unit = "epoch" if limits.max_epochs == 1 else "epochs"
    epochs = "" if limits.max_epochs is None else f", or earlier after {limits.max_epochs:g} {unit}"
    return printable(f"{path}: the run ends at {STEPS} {limits.max_steps:,} ({source}){epochs}")


def _note_on_packing(path: Path, done: dict[tuple[str, str], str], run: ResolvedRun | None) -> str:
    """Return a note if rows per step were translated and a row here holds several texts, else empty."""
    if run is None or not run.config.datacollator.pack_sequences:
        return ""
    return printable(f"{path}: {PACKED}") if any(ROWS in each for each in done.values()) else ""


def _note_on_recipe(path: Path, done: dict[tuple[str, str], str]) -> str:
    """Return a note on unset keys of `RECIPE` if a learning rate was translated; else empty."""
    if not any(RATE in each for each in done.values()):
        return ""
    root = load_document(path).root
    unset = [key for key in RECIPE if find(root, tuple(key.split("."))) is None]
    reason = "set by the profile or the default, which may differ from the other trainer"
    return printable(f"{path}: {reason}: {', '.join(unset)}") if unset else ""


def _resolve_without_problems(path: Path) -> ResolvedRun | None:
    """Resolve a file without its faulty entries; None if max_steps is one of them or resolving fails."""
    issues = _read_issues(path)
    if issues is None or any(issue.path in (STEPS, "trainer") for issue in issues):
        return None
    refused = [tuple(issue.path.split(".")) for issue in issues if issue.file == str(path)]
    values = to_plain_value(without_paths(load_document(path), refused).root)
    # A section of another trainer is refused as a whole.
    own = {name: value for name, value in values.items() if (name,) not in refused}
    try:
        return _with_temporary_file(path, json.dumps(own), lambda trial: resolve_run(None, [trial]))
    except ProjectError:
        return None


def _next_problem(issues: Issues, path: Path, refused: set[tuple[str, str]]) -> ConfigIssue | None:
    """Return the next problem in this file, or None; one-word sections first, as keys may move there."""
    candidates = [issue for issue in issues if issue.file == str(path) and _problem_key(issue) not in refused]
    return min(candidates, key=lambda issue: issue.path not in AS_TEXT, default=None)


def _safe_changes(
    source: str, issue: ConfigIssue, path: Path, before: Issues
) -> Iterator[tuple[Change, Issues]]:
    """Yield changes that leave fewer problems and no new ones, with the remaining problems."""
    known = {_problem_key(each) for each in before}
    root = _with_temporary_file(path, source, load_document).root
    for change in candidate_changes(source, issue, root, is_yaml=path.suffix.lower() in (".yaml", ".yml")):
        after = _read_text_issues(change.source, path)
        if after is None:
            continue
        new = {key for key in map(_problem_key, after) if key not in known}
        # Keys of a misnamed section are checked only once it is renamed, so their problems are new.
        is_new_allowed = change.section and all(key[1].startswith(f"{change.section}.") for key in new)
        if is_new_allowed or (len(after) < len(before) and not new):
            yield change, after


def _problem_key(issue: ConfigIssue) -> tuple[str, str]:
    return issue.code, issue.path


def _with_temporary_file(path: Path, source: str, use: Callable[[Path], T]) -> T:
    """Call `use` on a temporary file with this text and the name of `path`, and return its result."""
    with tempfile.TemporaryDirectory(prefix="neobert-fix-") as folder:
        trial = Path(folder, path.name)
        trial.write_bytes(source.encode("utf-8"))
        return use(trial)


def _read_text_issues(source: str, path: Path) -> Issues | None:
    """Return the problems of a text as if it were in `path`, or None if it fails with another error."""

    def judge(trial: Path) -> Issues | None:
        issues = _read_issues(trial)
        ours = str(trial)
        return issues and tuple(
            each._replace(file=str(path)) if each.file == ours else each for each in issues
        )

    return _with_temporary_file(path, source, judge)


def _read_issues(path: Path) -> Issues | None:
    try:
        resolve_run(None, [path])
    except ConfigError as error:
        return error.issues
    except ProjectError:
        return None
    return ()
