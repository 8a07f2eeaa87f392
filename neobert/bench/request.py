"""Request for a measurement: written as JSON by the command line, read by the harness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from neobert.errors import EXIT_USAGE, ProjectError

Data = Literal["synthetic", "own"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A measurement.

    Attributes:
        arms: canonical configs by name, one or two; the first is what the second is compared with.
        digests: their digests.
        differences: by key, the values of the two arms.
        steps: optimizer steps of each arm, the trimmed ones included.
        trim: warm-up steps that are not counted.
        rounds: turns of each arm, which share the other steps.
        data: synthetic documents, or the run's own.
        baseline: report of an earlier measurement, or None.
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
        """Raise `ProjectError` if no step would be counted."""
        if min(self.trim, self.rounds) < 1 or self.steps_per_turn < 1:
            raise ProjectError(
                "bench-steps",
                f"{self.steps} steps minus {self.trim} to trim are too few for {self.rounds} rounds",
                "raise --steps, or lower --trim (at least 1) or --rounds",
                exit_code=EXIT_USAGE,
            )

    @property
    def steps_per_turn(self) -> int:
        """Return the steps of an arm in a round."""
        return (self.steps - self.trim) // self.rounds

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that a later measurement must share to be comparable."""
        return {"steps": self.steps, "trim": self.trim, "rounds": self.rounds, "data": self.data}

    def as_json(self) -> dict[str, Any]:
        """Return the request as JSON values."""
        return asdict(self)
