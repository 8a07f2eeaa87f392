"""Request for a measurement: written as JSON by the command line, read by the harness."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
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
        trim: steps at the beginning that are not counted.
        rounds: turns of each arm that the other steps are divided into.
        data: documents made up for the measurement, or the run's own.
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
        """Raise `ProjectError` where no step would be counted."""
        if min(self.trim, self.rounds) < 1 or self.steps_per_turn < 1:
            raise ProjectError(
                "bench-steps",
                f"of {self.steps} steps {self.trim} are trimmed, and {self.rounds} rounds need one each",
                "raise --steps, or lower --trim (at least 1) or --rounds",
                exit_code=EXIT_USAGE,
            )

    @property
    def steps_per_turn(self) -> int:
        """Steps that an arm does in a round."""
        return (self.steps - self.trim) // self.rounds

    @property
    def settings(self) -> dict[str, Any]:
        """Name what a later measurement must share to be comparable."""
        return {"steps": self.steps, "trim": self.trim, "rounds": self.rounds, "data": self.data}

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        return asdict(self)


def read_request(path: Path) -> Request:
    """Read what `as_json` returned."""
    return Request(**json.loads(path.read_text(encoding="utf-8")))
