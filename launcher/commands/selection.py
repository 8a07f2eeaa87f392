"""Selection of a run by profile, run files and overrides."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from neobert.errors import EXIT_USAGE, ProjectError
from neobert.printable import printable

if TYPE_CHECKING:
    from neobert.config import Origin
    from profiles.registry import ResolvedRun

VISIBLE_ENV = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Selection:
    """Profile, run files and overrides of the command line, before any file is read.

    Attributes:
        arguments: for a generated run file, the argument that determined each key, by key.
    """

    profile: str | None
    files: tuple[Path, ...]
    overrides: tuple[str, ...]
    arguments: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_options(
        cls, profile: str | None, files: Sequence[Path] | None, overrides: Sequence[str] | None
    ) -> Selection:
        """Create a selection from command-line options, which are None if they were not given."""
        return cls(profile, tuple(files or ()), tuple(overrides or ()))

    def with_overrides(self, added: Iterable[str]) -> Selection:
        """Return the selection with more overrides, which win over its own."""
        return replace(self, overrides=(*self.overrides, *added))

    @property
    def is_empty(self) -> bool:
        """Return whether no profile, file or override is given."""
        return self.profile is None and not self.files and not self.overrides

    def as_arguments(self) -> list[str]:
        """Return command-line arguments that make the same selection."""
        words = ["--profile", self.profile] if self.profile else []
        for option, values in (("--config", self.files), ("--set", self.overrides)):
            words += [word for value in values for word in (option, str(value))]
        return words

    def resolve(self) -> ResolvedRun:
        """Resolve the config of the selected run, with the values that a run in its directory began with.

        Raises ProjectError if it is unreadable or invalid.
        """
        from launcher.rundir.continued_run import read_continued_run
        from neobert.config.errors import ConfigError
        from profiles.registry import resolve_run

        try:
            run = resolve_run(self.profile, self.files, self.overrides)
            if begun := read_continued_run(run):
                run = resolve_run(self.profile, self.files, self.overrides, begun)
        except ConfigError as error:
            from launcher.report.partial_checks import add_partial_findings

            raise add_partial_findings(error, self.profile, self.files, self.overrides) from None
        return replace(
            run, origins={key: self._displayed_origin(key, origin) for key, origin in run.origins.items()}
        )

    def _displayed_origin(self, key: str, origin: Origin) -> Origin:
        """Return the origin for findings, which must not point to lines of a generated file."""
        is_generated = origin.kind == "file" and key in self.arguments
        return origin._replace(file=self.arguments[key], line=0, column=0) if is_generated else origin

    def require(self) -> ResolvedRun:
        """Resolve the selected run, and print a note if it continues with values of an earlier version.

        Raises ProjectError if the selection is empty or invalid.
        """
        from launcher.rundir.continued_run import continued_values_note
        from launcher.terminal import console

        require_working_directory()
        self.require_any()
        run = self.resolve()
        if note := continued_values_note(run):
            console.log(printable(note))
        return run

    def require_any(self) -> None:
        """Raise ProjectError if no profile, run file or override is given."""
        if self.is_empty:
            raise ProjectError(
                code="no-run",
                message="no profile or run file is given",
                hint="pass a run file (run.yaml; `neobert-launch init` writes one) or a profile "
                "(--profile cpu-demo; `neobert-launch profiles list` shows them)",
                exit_code=EXIT_USAGE,
            )


def require_working_directory() -> None:
    """Raise FileNotFoundError if the working directory was removed, because torch's import would fail."""
    os.getcwd()


def hide_gpus_from_cpu_run(run: ResolvedRun) -> None:
    """Hide the GPUs from all child processes of a run whose profile is for a CPU.

    No check has verified that these GPUs are idle, healthy, or meant for this run.
    """
    if run.device == "cpu":
        os.environ[VISIBLE_ENV] = ""
