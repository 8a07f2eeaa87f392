"""A run before its start: config, plan, preflight, training."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.commands.selection import Selection
from launcher.rundir.directory import run_directory
from launcher.rundir.records import read_outcome
from neobert.config import Origin, RunConfig
from neobert.config.overrides import format_text_override
from neobert.errors import EXIT_OK, ProjectError
from neobert.plan import Plan
from neobert_launch.command import failed, pass_on, report_of
from neobert_launch.directory import RunDirectory
from profiles.registry import ResolvedRun
from validators.planning import plan_run


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a check found. `severity`: fail, warn or unknown; `path`: the key that it is about."""

    code: str
    name: str
    severity: str
    path: str
    message: str
    hint: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of preflight. `verdict`: pass, fail or unknown."""

    verdict: str
    findings: tuple[Finding, ...]

    def __bool__(self) -> bool:
        """Return whether the run may start."""
        return self.verdict == "pass"


class Run:
    """A run, selected by profile, run files and values. Immutable; `with_values` returns a changed copy."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._resolved: ResolvedRun = selection.require()

    def __repr__(self) -> str:
        return f"Run({' '.join(self._selection.as_arguments())})"

    @property
    def config(self) -> RunConfig:
        """The values of all keys."""
        return self._resolved.config

    @property
    def origins(self) -> Mapping[str, Origin]:
        """Origin of each key's value: file with line and column, profile, or override."""
        return self._resolved.origins

    @property
    def digest(self) -> str:
        """SHA-256 of the config, as hex."""
        return self._resolved.digest

    def with_values(self, values: Mapping[str, Any]) -> Run:
        """Return this run with other values of keys, such as `{"optimizer.lr": 1e-3}`."""
        of = self._selection
        return Run(Selection(of.profile, of.files, (*of.overrides, *_overrides(values))))

    def plan(self) -> Plan:
        """Return predictions of size, memory, time and cost. Each has a value, or None, and a reason."""
        return plan_run(self._resolved)

    def preflight(self, levels: str = "") -> Verdict:
        """Check config, machine, GPUs and data, as `preflight` does.

        Args:
            levels: comma-separated levels, such as "static,host"; empty: the profile's levels.
        """
        report = report_of("preflight", *self._arguments(), *(("--level", levels) if levels else ()))
        names = Finding.__slots__
        found = (Finding(**{name: each[name] for name in names}) for each in report["findings"])
        return Verdict(report["verdict"], tuple(found))

    def train(self, on_line: Callable[[str], None] = print) -> RunDirectory:
        """Run preflight, then train under supervision.

        With `trainer.resume_from_checkpoint: auto` the same call continues a stopped run.

        Args:
            on_line: called with each line of output.

        Raises `ProjectError` if the run was refused, or did not finish.
        """
        code = pass_on(["train", *self._arguments()], on_line)
        folder = run_directory(self._resolved)
        if code == EXIT_OK:
            return RunDirectory(folder)
        outcome = read_outcome(folder)  # empty if the preflight refused the first launch
        if outcome.get("exit_code") == code and outcome.get("message"):
            hint = str(outcome.get("hint", ""))
            raise ProjectError(str(outcome.get("code")), str(outcome["message"]), hint, str(folder), code)
        raise failed("train", code)

    def _arguments(self) -> list[str]:
        of = self._selection
        arguments = [] if of.profile is None else ["--profile", of.profile]
        for file in of.files:
            arguments += ["--config", str(file)]
        for override in of.overrides:
            arguments += ["--set", override]
        return arguments


def load_run(*files: str | Path, profile: str | None = None, values: Mapping[str, Any] | None = None) -> Run:
    """Load a run from a named profile, run files and values of keys: later ones replace earlier ones.

    Raises `ProjectError` for a config that cannot be read or is invalid.
    """
    return Run(Selection(profile, tuple(map(Path, files)), tuple(_overrides(values or {}))))


def _overrides(values: Mapping[str, Any]) -> list[str]:
    """Return values as command-line overrides, which are read as YAML, a superset of JSON."""
    return [
        format_text_override(key, value) if isinstance(value, str) else f"{key}={json.dumps(value)}"
        for key, value in values.items()
    ]
