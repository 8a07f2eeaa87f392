"""Findings on the readable part of a run file with unknown keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from neobert.config.annotations import TAG, annotation_at, is_union, literal_choices, unwrap
from neobert.config.errors import ConfigError
from neobert.config.schema import RunConfig
from neobert.errors import EXIT_CHECK_FAILED, ProjectError

if TYPE_CHECKING:
    from profiles.registry import ResolvedRun
    from validators.finding import Finding

FOREIGN = ("CFG001", "CFG007")
ANY_GPU = "a100-prod"
PROFILE, TASK = "profile", "task"

VALUE_FOR_NULL: dict[Any, Any] = {str: "other", int: 8, float: 0.5}


class JudgedConfigError(ConfigError):
    """Error of a run file with unknown keys, with findings on its readable part."""

    def __init__(self, error: ConfigError, findings: Sequence[Finding]) -> None:
        super().__init__(error.issues)
        self.findings = tuple(findings)


def add_partial_findings(
    error: ConfigError, profile: str | None, files: Sequence[Path], overrides: Sequence[str] = ()
) -> ConfigError:
    """Return the error of a run file; for unknown keys, with findings on the keys that can be resolved."""
    is_foreign = any(issue.code in FOREIGN for issue in error.issues)
    refused = {issue.path for issue in error.issues}
    if error.exit_code != EXIT_CHECK_FAILED or not is_foreign or TASK in refused:
        return error
    try:
        findings = _partial_findings(profile, files, overrides)
    except ProjectError:
        return error
    known = [finding for finding in findings if finding.path not in refused]
    return JudgedConfigError(error, known) if known else error


def _partial_findings(profile: str | None, files: Sequence[Path], overrides: Sequence[str]) -> list[Finding]:
    from profiles.registry import resolve_readable

    run = resolve_readable(profile, files, overrides)
    if run is None:
        return []
    return [
        replace(one, message=f"{one.message} (partial check: the file has unknown keys)")
        for one in _findings_independent_of_defaults(run)
    ]


def _findings_independent_of_defaults(run: ResolvedRun) -> list[Finding]:
    """Return the findings that depend neither on defaults nor on the device of a run without a profile.

    An unknown key may stand for any key that is not set, so the run is checked twice, with the defaults and
    with other values, and a finding must be the same. A hint that differs is dropped. A named production
    profile decides on every key.
    """
    if run.profile is not None and run.is_production:
        return _static_findings(run)
    hints = {_finding_identity(one): one.hint for one in _static_findings(_replace_defaults(run))}
    return [
        one if one.hint == hints.get(_finding_identity(one), one.hint) else replace(one, hint="")
        for one in _static_findings(run)
        if one.path == PROFILE or (_finding_identity(one) in hints and run.origin(one.path).kind != "default")
    ]


def _replace_defaults(run: ResolvedRun) -> ResolvedRun:
    from profiles.registry import load_profile

    unset = [key for key, origin in run.origins.items() if origin.kind == "default"]
    config = _replace_values(run.config, unset)
    return replace(run, config=config, profile=run.profile or load_profile(ANY_GPU))


def _static_findings(run: ResolvedRun) -> list[Finding]:
    from validators.core import judge
    from validators.planning import plan_run

    return judge(run, plan_run(run))[0]


def _finding_identity(finding: Finding) -> tuple[str, str, str]:
    return finding.code, finding.path, finding.message


def _replace_values(config: RunConfig, keys: Iterable[str]) -> RunConfig:
    """Return the config with another value for each of these `section.key`; types of sections are kept.

    The result is for comparisons only: relations between keys are not respected.
    """
    changes: dict[str, dict[str, Any]] = {}
    for key in keys:
        section, _, name = key.rpartition(".")
        held = getattr(config, section, None)
        if name != TAG and hasattr(held, name):
            other = _different_value(annotation_at((section, name)), getattr(held, name))
            changes.setdefault(section, {})[name] = other
    sections = {section: replace(getattr(config, section), **values) for section, values in changes.items()}
    return replace(config, **sections)


def _different_value(annotation: Any, value: Any) -> Any:
    """Return another value of the key's type, or `value` itself if the type has no known alternative."""
    bare, _ = unwrap(annotation)
    if value is None:
        return VALUE_FOR_NULL.get(get_args(bare)[0] if is_union(bare) else bare)
    if choices := literal_choices(annotation):
        return choices[choices.index(value) - 1]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value // 2 if value > 1 else value + 1
    if isinstance(value, float):
        return value / 2 or VALUE_FOR_NULL[float]
    if isinstance(value, tuple):
        return tuple(_different_value(None, each) for each in value)
    return f"{value}-other" if isinstance(value, str) else value
