"""Findings on the readable part of a run file with unknown keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from neobert.config.errors import ConfigError
from neobert.errors import EXIT_CHECK_FAILED, ProjectError

if TYPE_CHECKING:
    from profiles.registry import ResolvedRun
    from validators.finding import Finding

FOREIGN = ("CFG001", "CFG007")
ANY_GPU = "a100-prod"
PROFILE, TASK = "profile", "task"


class JudgedConfigError(ConfigError):
    """Error of a run file with unknown keys, with findings on its readable part."""

    def __init__(self, error: ConfigError, findings: Sequence[Finding]) -> None:
        super().__init__(error.issues)
        self.findings = tuple(findings)


def judged_as_read(
    error: ConfigError, profile: str | None, files: Sequence[Path], overrides: Sequence[str] = ()
) -> ConfigError:
    """Return the error, with findings on the known keys if the run can be resolved from them alone."""
    is_foreign = any(issue.code in FOREIGN for issue in error.issues)
    refused = {issue.path for issue in error.issues}
    if error.exit_code != EXIT_CHECK_FAILED or not is_foreign or TASK in refused:
        return error
    try:
        findings = _findings(profile, files, overrides)
    except ProjectError:
        return error
    known = [finding for finding in findings if finding.path not in refused]
    return JudgedConfigError(error, known) if known else error


def _findings(profile: str | None, files: Sequence[Path], overrides: Sequence[str]) -> list[Finding]:
    from profiles.registry import resolve_readable

    run = resolve_readable(profile, files, overrides)
    if run is None:
        return []
    return [
        replace(one, message=f"{one.message} (partial check: the file has unknown keys)")
        for one in _independent_of_defaults(run)
    ]


def _independent_of_defaults(run: ResolvedRun) -> list[Finding]:
    """Return the findings that depend neither on defaults nor on the device of a run without a profile.

    An unknown key may stand for any key that is not set, so the run is judged twice, with the defaults and
    with other values in their place, and a finding must be the same. A hint that differs is dropped. A named
    production profile decides on every key.
    """
    if run.profile is not None and run.is_production:
        return _judged(run)
    hints = {_identity(one): one.hint for one in _judged(_with_other_defaults(run))}
    return [
        one if one.hint == hints.get(_identity(one), one.hint) else replace(one, hint="")
        for one in _judged(run)
        if one.path == PROFILE or (_identity(one) in hints and run.origin(one.path).kind != "default")
    ]


def _with_other_defaults(run: ResolvedRun) -> ResolvedRun:
    from neobert.config.other_values import with_other_values
    from profiles.registry import load_profile

    unset = [key for key, origin in run.origins.items() if origin.kind == "default"]
    config = with_other_values(run.config, unset)
    return replace(run, config=config, profile=run.profile or load_profile(ANY_GPU))


def _judged(run: ResolvedRun) -> list[Finding]:
    from validators.core import judge
    from validators.planning import plan_run

    return judge(run, plan_run(run))[0]


def _identity(finding: Finding) -> tuple[str, str, str]:
    return finding.code, finding.path, finding.message
