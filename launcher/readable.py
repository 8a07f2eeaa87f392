"""A run in another trainer's terms: beside the names that are refused, what the rules say of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from neobert.config.errors import ConfigError
from neobert.errors import EXIT_CHECK_FAILED, ProjectError

if TYPE_CHECKING:
    from validators.finding import Finding

FOREIGN = ("CFG001", "CFG007")


class JudgedConfigError(ConfigError):
    """Why a run was refused, and what the rules found in the part of it that could be read."""

    def __init__(self, error: ConfigError, findings: Sequence[Finding]) -> None:
        super().__init__(error.issues)
        self.findings = tuple(findings)

    def __str__(self) -> str:
        from launcher.formats.text import finding_text

        return "\n\n".join([super().__str__(), *map(finding_text, self.findings)])


def judged_as_read(
    error: ConfigError, profile: str | None, files: Sequence[Path], overrides: Sequence[str] = ()
) -> ConfigError:
    """The same refusal with what the rules find, where the run can be read in this schema's names."""
    is_foreign = any(issue.code in FOREIGN for issue in error.issues)
    if error.exit_code != EXIT_CHECK_FAILED or not is_foreign:
        return error
    try:
        findings = _findings(profile, files, overrides)
    except ProjectError:
        return error
    return JudgedConfigError(error, findings) if findings else error


def _findings(profile: str | None, files: Sequence[Path], overrides: Sequence[str]) -> list[Finding]:
    from profiles.registry import resolve_readable
    from validators.core import judge
    from validators.planning import plan_run

    run = resolve_readable(profile, files, overrides)
    if run is None:
        return []
    findings, _ = judge(run, plan_run(run))
    return [replace(one, message=f"{one.message} (as far as the file can be read)") for one in findings]
