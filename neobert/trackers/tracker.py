"""The interface of a tracker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Settings = Mapping[str, Any]
"""The resolved config as plain values."""


class Session(Protocol):
    """An open tracker. Either method may block or raise: `background` isolates training from both."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the metrics of a step, under their names in metrics.jsonl."""

    def close(self) -> None:
        """Send or write the remaining lines, and end the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The run that a session reports on.

    Attributes:
        identity: 16 hex digits that the sessions of one run share (`identity.identity_of`).
        first_step: step of the first line that will be logged; above 0 for a resumed run. An earlier session
            may have logged lines of this step and later ones, which this session repeats.
        settings: the resolved config as plain values; trackers do not import the schema, which imports their
            table.
    """

    run_dir: Path
    identity: str
    first_step: int
    settings: Settings

    @property
    def name(self) -> str:
        """Return the name of the run directory."""
        return self.run_dir.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracker:
    """An entry of the table.

    Attributes:
        name: value of `trackers`, and name of the extra in pyproject.toml.
        package: distribution that has to be installed; None for none.
        requirement: the package with its lowest supported version, as the extra has it.
        start: opens a session; imports the package.
        folder: local folder that the tracker writes to, given the run directory and the config.
        null: value that it gets for null in metrics.jsonl, which is not a finite number; None leaves it out.
    """

    name: str
    package: str | None
    requirement: str
    start: Callable[[TrackedRun], Session]
    folder: Callable[[Path, Settings], Path]
    null: float | None = None

    @property
    def is_installed(self) -> bool:
        """Look the package up without importing it."""
        from importlib.metadata import PackageNotFoundError, version

        if self.package is None:
            return True
        try:
            version(self.package)
        except PackageNotFoundError:
            return False
        return True

    @property
    def install(self) -> str:
        """Return the command that installs the package."""
        return f"pip install '{self.requirement}'"
