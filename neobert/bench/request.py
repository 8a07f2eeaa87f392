"""Benchmark request, written as JSON by the command line and read by `neobert.bench`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from neobert.errors import EXIT_USAGE, ProjectError

Data = Literal["synthetic", "own"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Benchmark request.

    Attributes:
        arms: one or two canonical configs by name; the second is compared with the first.
        digests: config digests by arm name.
        differences: config keys that differ, with the values of both arms.
        steps: optimizer steps of each arm, including warm-up steps.
        trim: warm-up steps, which are not measured.
        rounds: number of turns of each arm; the measured steps are divided among them.
        data: "synthetic" documents, or the run's "own" data.
        baseline: report of an earlier benchmark to compare with, or None.
    """

    arms: Mapping[str, Mapping[str, Any]]
    digests: Mapping[str, str]
    differences: Mapping[str, tuple[Any, Any]]
    steps: int
    trim: int
    rounds: int
    data: Data
    baseline: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        """Raise `ProjectError` if trim or rounds is below 1, or a turn would have no step."""
        for option, value in {"--trim": self.trim, "--rounds": self.rounds}.items():
            if value < 1:
                message = f"{option} is {value} (at least 1)"
                raise ProjectError("bench-steps", message, f"set {option} to 1 or more", exit_code=EXIT_USAGE)
        if self.steps_per_turn < 1:
            message = f"--steps {self.steps} minus --trim {self.trim} is less than --rounds {self.rounds}"
            hint = "raise --steps, or lower --trim or --rounds"
            raise ProjectError("bench-steps", message, hint, exit_code=EXIT_USAGE)

    @property
    def steps_per_turn(self) -> int:
        """Return the number of steps that an arm runs in each round."""
        return (self.steps - self.trim) // self.rounds

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that must be equal in two reports to compare them."""
        return {"steps": self.steps, "trim": self.trim, "rounds": self.rounds, "data": self.data}

    def as_json(self) -> dict[str, Any]:
        """Return the request as JSON values."""
        return asdict(self)
