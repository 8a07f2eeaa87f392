"""`lint`: static rules for run files and profiles."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import validators.rules  # noqa: F401  registers every rule
from launcher.lint.discovery import DiscoveredFiles, discover, reason_to_skip_foreign_file
from launcher.preflight.text_checks import judge_with_text
from launcher.report.formats import print_report
from launcher.report.formats.text import render
from launcher.report.partial_checks import add_partial_findings
from launcher.report.report import Report, error_findings
from launcher.terminal import console
from neobert.config import COMMAND_LINE, ConfigError
from neobert.config.document import load_document
from neobert.errors import EXIT_CHECK_FAILED, EXIT_OK, EXIT_USAGE, ProjectError
from neobert.plurals import counted
from neobert.printable import printable
from profiles.inherit import EXTENDS, top_level_entries
from profiles.registry import ResolvedRun, resolve_run
from validators.finding import CheckResult, Finding, Status, compute_verdict
from validators.planning import plan_run
from validators.rule import RULES, current_code

REPOSITORY_CODE = "CFG010"
RENAMED_ONLY = (".json", ".toml")
MAX_NAMED = 10
MAX_TRIED = 100
WORST_FIRST = (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.PASS, Status.SKIP)


class RuleSelection(NamedTuple):
    """Rules to report, by code or prefix; an empty `select` selects all, and `ignore` has priority."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def selects(self, code: str) -> bool:
        """Return whether a rule code starts with a selected prefix (if any) and with no ignored one."""
        selected, ignored = (tuple(map(current_code, codes)) for codes in (self.select, self.ignore))
        return (not selected or code.startswith(selected)) and not (ignored and code.startswith(ignored))

    def require_known_codes(self) -> None:
        """Raise ProjectError for a prefix that matches no rule, e.g. because of a typo."""
        if not (prefixes := (*self.select, *self.ignore)):
            return
        from launcher.commands.rule import note_retired

        for prefix in prefixes:
            note_retired(prefix)
            if not any(code.startswith(current_code(prefix)) for code in RULES):
                raise ProjectError(
                    code="unknown-rule",
                    message=f"no rule code starts with {prefix}",
                    hint="`neobert-launch rule --all` lists the codes",
                    exit_code=EXIT_USAGE,
                )


class LintRequest(NamedTuple):
    """Arguments of `lint`.

    `strict`: warnings count as failures; `quiet`: print findings only; `needs_data`: local text must exist,
    and parquet and `.zst` files are opened too; `overrides`: keys that the command line sets in every file.
    """

    paths: tuple[Path, ...]
    choice: RuleSelection
    fix: bool
    statistics: bool
    strict: bool
    quiet: bool = False
    needs_data: bool = False
    overrides: tuple[str, ...] = ()


class CheckedFile(NamedTuple):
    """Findings and checks of one file. `exit_code` is not 0 if the file could not be resolved.

    `note`: why its text was not checked.
    """

    findings: tuple[Finding, ...]
    checks: tuple[CheckResult, ...]
    exit_code: int = EXIT_OK
    profile: str = ""
    config_hash: str = ""
    note: str = ""


def split_codes(given: Sequence[str] | None) -> tuple[str, ...]:
    """Split repeated comma-separated options into one tuple of upper-case codes; empty for None."""
    return tuple(code.strip().upper() for item in given or () for code in item.split(",") if code.strip())


def run(request: LintRequest, output_format: str) -> int:
    """Lint all files, after safe fixes with `request.fix`; print one report and return its exit code.

    Raises ProjectError for an unknown rule code, or a folder without a run file or profile.
    """
    request.choice.require_known_codes()
    discovered = discover(request.paths)
    _require_files(request.paths, discovered)
    if request.fix:
        _apply_fixes([path for path in discovered.files if reason_to_skip_foreign_file(path) is None])
    judged = [
        _select_rules(
            check_file(path, needs_data=request.needs_data, overrides=request.overrides),
            request.choice,
        )
        for path in discovered.files
    ]
    is_repository = request.choice.selects(REPOSITORY_CODE) and any(map(os.path.isdir, request.paths))
    report = combine_results(judged, strict=request.strict, has_folder=is_repository)
    if output_format != "text":
        print_report(report, output_format)
    elif text := render(report, _fixable_findings(discovered.files, judged, report), quiet=request.quiet):
        console.write(text)
    if output_format == "text" and request.statistics:
        _write_statistics(report)
    if not request.quiet:
        _log_notes(discovered, [one.note for one in judged if one.note])
    return report.exit_code


def _fixable_findings(files: Sequence[Path], judged: Sequence[CheckedFile], report: Report) -> list[Finding]:
    """Return the findings that --fix would fix, in files that could not be resolved.

    Every fix is tried, so files with more than `MAX_TRIED` problems are skipped.
    """
    broken = [
        path
        for path, one in zip(files, judged, strict=True)
        if one.exit_code and reason_to_skip_foreign_file(path) is None
    ]
    if not broken:
        return []
    from launcher.lint.fixes import fixable_problems

    num_problems = Counter(finding.file for finding in report.findings)
    fixes = {str(path): fixable_problems(path) for path in broken if num_problems[str(path)] <= MAX_TRIED}
    return [each for each in report.findings if (each.code, each.path) in fixes.get(each.file, ())]


def _require_files(paths: Sequence[Path], discovered: DiscoveredFiles) -> None:
    """Raise ProjectError if a folder is given and no run file or profile was found.

    File paths alone raise nothing: a pre-commit hook may pass only YAML files of other tools.
    """
    if not discovered.files and any(map(os.path.isdir, paths)):
        raise ProjectError(
            code="nothing-to-lint",
            message=f"no run file or profile in {', '.join(map(str, paths))}",
            hint="pass the paths of the files, or another folder",
            exit_code=EXIT_USAGE,
        )


def check_file(
    path: Path,
    *,
    needs_data: bool = False,
    overrides: tuple[str, ...] = (),
) -> CheckedFile:
    """Resolve one file as `train` does, run the static rules, and check local text.

    Errors in resolving become findings. Text that is not on this machine is unknown, unless `needs_data`.
    """
    resolved: ResolvedRun | None = None
    try:
        resolved = resolve_run(None, [path], overrides)
        if _is_parent_profile(resolved):
            return CheckedFile((), (), EXIT_OK, "", resolved.digest)
        checked = judge_with_text(resolved, plan_run(resolved), needs_data=needs_data)
    except ProjectError as error:
        judged = (
            add_partial_findings(error, None, [path], overrides) if isinstance(error, ConfigError) else error
        )
        return CheckedFile(
            tuple(_locate_findings(error_findings(judged), path, resolved)), (), error.exit_code
        )
    profile = resolved.profile.name if resolved.profile else ""
    placed = tuple(_move_to_linted_file(finding, resolved, path) for finding in checked.findings)
    note = f"{path}: {checked.note}" if checked.note else ""
    return CheckedFile(placed, tuple(checked.checks), EXIT_OK, profile, resolved.digest, note)


def _move_to_linted_file(finding: Finding, resolved: ResolvedRun, path: Path) -> Finding:
    """Move a finding on an inherited value to the line of `profile:` or `extends:` in the linted file.

    The linted file is the one to correct, and the parent profile may be outside the repository. The
    position of the value itself is kept in the `inherited_` fields.
    """
    if finding.file in (str(path), COMMAND_LINE):
        return finding
    # the parent is named by `extends:` in a profile, and by `profile:` in a run file
    extended = (
        top_level_entries(load_document(path)).get(EXTENDS) if path.is_file() else None
    )  # a pipe is read once
    named = resolved.origin("profile") if extended is None else extended.origin
    line, column = (named.line, named.column) if named.file == str(path) else (1, 1)
    parent = f"{Path(finding.file).stem}, line {finding.line}"
    return replace(
        finding,
        message=f"{finding.message}; {finding.path} is inherited from {parent}",
        file=str(path),
        line=line,
        column=column,
        inherited_file=finding.file,
        inherited_line=finding.line,
        inherited_column=finding.column,
    )


def _is_parent_profile(resolved: ResolvedRun) -> bool:
    """Return whether the file is a base profile, or a development profile without a dataset.

    Such a profile must resolve, but rules about runs do not apply to it.
    """
    profile = resolved.profile
    if profile is None or resolved.source_file != profile.files[0]:
        return False
    dataset = profile.config.dataset
    has_data = bool(dataset.path or dataset.name or dataset.mixture)
    return profile.kind == "base" or (profile.kind == "development" and not has_data)


def _locate_findings(
    findings: Iterable[Finding], path: Path, resolved: ResolvedRun | None
) -> Iterator[Finding]:
    """Locate findings that lack a location: at their key if the file could be resolved, else at its start."""
    for finding in findings:
        if finding.file:
            yield finding
        elif resolved is None or not finding.path:
            yield replace(finding, file=str(path), line=1, column=1)
        else:
            place = resolved.place(finding.path)
            located = replace(finding, file=place.file, line=place.line, column=place.column)
            yield _move_to_linted_file(located, resolved, path)


def _select_rules(judged: CheckedFile, choice: RuleSelection) -> CheckedFile:
    """Drop findings and checks of rules that were not selected, unless the file could not be resolved."""
    if judged.exit_code:
        return judged
    findings = tuple(finding for finding in judged.findings if choice.selects(finding.code))
    checks = tuple(check for check in judged.checks if choice.selects(check.id))
    return judged._replace(findings=findings, checks=checks)


def combine_results(judged: Sequence[CheckedFile], *, strict: bool, has_folder: bool = False) -> Report:
    """Combine the results of all files into one report.

    The exit code is the most severe of all files: usage error, failed check, unknown, success. With
    `has_folder`, the check CFG010 of the whole repository is added.
    """
    findings = sorted(dict.fromkeys(finding for one in judged for finding in one.findings), key=_sort_key)
    checks = _worst_results(check for one in judged for check in one.checks)
    if has_folder and any(one.checks for one in judged):
        checks.append(_repository_check(judged, strict=strict))
    codes = {one.exit_code for one in judged} | {compute_verdict(findings, checks, strict=strict).exit_code}
    exit_code = next(
        code for code in (EXIT_USAGE, EXIT_CHECK_FAILED, *sorted(codes, reverse=True)) if code in codes
    )
    alone = judged[0] if len(judged) == 1 else CheckedFile((), ())
    return Report(exit_code, alone.profile, alone.config_hash, tuple(findings), tuple(checks))


def _sort_key(finding: Finding) -> tuple[str, int, int, str]:
    """Return the sort key of a finding: file, line, column and rule code."""
    return finding.file, finding.line, finding.column, finding.code


def _worst_results(checks: Iterable[CheckResult]) -> list[CheckResult]:
    worst: dict[str, CheckResult] = {}
    for check in checks:
        known = worst.setdefault(check.id, check)
        if WORST_FIRST.index(check.status) < WORST_FIRST.index(known.status):
            worst[check.id] = check
    return [worst[code] for code in sorted(worst)]


def _repository_check(judged: Sequence[CheckedFile], *, strict: bool) -> CheckResult:
    failed = sum(
        bool(one.exit_code or compute_verdict(one.findings, one.checks, strict=strict).exit_code)
        for one in judged
    )
    rule = RULES[REPOSITORY_CODE]
    status = Status.FAIL if failed else Status.PASS
    message = f"{failed} of {counted(len(judged), 'file')} failed" if failed else ""
    return CheckResult(rule.code, rule.name, rule.level, status, required=True, message=message)


def _apply_fixes(files: Sequence[Path]) -> None:
    """Apply safe fixes in place; log each fix and its notes, and how many problems were fixed of how many."""
    from launcher.lint.fixes import fix_file

    num_problems = num_fixed = 0
    reason = ""
    for path in files:
        fixed = fix_file(path)
        if len(fixed.done) < fixed.num_problems and path.suffix.lower() in RENAMED_ONLY:
            reason = ": in JSON and TOML, --fix renames keys, but does not move or remove them"
        num_problems, num_fixed = num_problems + fixed.num_problems, num_fixed + len(fixed.done)
        for done in fixed.done:
            console.log(f"fixed {done}")
        for note in fixed.notes:
            console.log(f"note: {note}")
    rest = f"; fix the rest manually{reason}" if num_fixed < num_problems else ""
    summary = f"fixed {num_fixed} of {counted(num_problems, 'problem')} in keys and values{rest}"
    console.log(summary if num_problems else "nothing to fix in keys and values")


def _write_statistics(report: Report) -> None:
    from launcher.terminal.table import format_columns

    times = Counter((finding.code, finding.name) for finding in report.findings)
    rows = [[str(number), code, name] for (code, name), number in times.most_common()]
    console.write(format_columns(rows, indent="  ") or "  no findings")


def _log_notes(discovered: DiscoveredFiles, notes: Sequence[str]) -> None:
    """Log why texts were not checked, and the paths that were left out, in every format."""
    for note in notes[:MAX_NAMED]:
        console.log(printable(f"note: {note}"))
    if not discovered.files:
        console.log("nothing to lint: none of the given files is a run file or a profile")
    for other in discovered.left_out[:MAX_NAMED]:
        meant = f"; did you mean {other.suggested_section}?" if other.suggested_section else ""
        console.log(printable(f"left out {other.path}: {other.reason}{meant}"))
    num_more = len(discovered.left_out) - MAX_NAMED
    if num_more > 0:
        console.log(f"left out {counted(num_more, 'other path')} for similar reasons")
