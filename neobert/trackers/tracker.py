"""Interface of experiment trackers: an entry of the table, and an open session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

Settings = Mapping[str, Any]
"""The resolved config as plain values."""


class Session(Protocol):
    """Open session of a tracker. Methods may block or raise: `background` isolates training from them."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the metrics of a step, under their names in metrics.jsonl."""

    def close(self) -> None:
        """Send or write the remaining metrics and end the session."""


class TrackedRun(NamedTuple):
    """Run whose metrics a session logs.

    Attributes:
        identity: run ID of 16 hex digits, shared by all sessions of the run (`identity.run_identity`).
        first_step: step of the first metrics of this session; above 0 for a resumed run. An earlier session
            may have logged this and later steps, which this session logs again.
        settings: the resolved config as plain values, because the schema imports the table of trackers.
    """

    run_dir: Path
    identity: str
    first_step: int
    settings: Settings

    @property
    def name(self) -> str:
        """Return the name of the run directory."""
        return self.run_dir.name


class Tracker(NamedTuple):
    """Entry of the table of trackers.

    Attributes:
        name: name in the config key `trackers`, and of the extra in pyproject.toml.
        package: distribution that must be installed; None if the tracker needs none.
        requirement: requirement of the package, as in the extra, such as `wandb>=0.21`.
        start: imports the package and opens a session.
        folder: returns the local folder that the tracker writes to, given run directory and config.
        null: value logged for a metric that is NaN or infinite (null in metrics.jsonl); None: not logged.
    """

    name: str
    package: str | None
    requirement: str
    start: Callable[[TrackedRun], Session]
    folder: Callable[[Path, Settings], Path]
    null: float | None = None

    @property
    def is_installed(self) -> bool:
        """Return whether the package is installed, without importing it."""
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
