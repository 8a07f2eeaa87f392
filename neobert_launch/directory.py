"""A run directory: metrics, outcome, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.rundir.records import read_json, read_metrics, read_outcome
from neobert.config import RunConfig, from_dict
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.runfiles.checkpoint.folders import BEST, checkpoint_steps
from neobert.runfiles.run_dir import CHECKPOINTS, METRICS, RESOLVED

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A run that was started, and may still be running. Its files are read on access.

    Raises `ProjectError` unless the path is a folder.
    """

    path: Path

    def __post_init__(self) -> None:
        if not Path(self.path).is_dir():
            hint = "pass the folder of a run: its trainer.output_dir"
            raise ProjectError("no-run", "there is no such folder", hint, str(self.path), EXIT_USAGE)

    @property
    def config(self) -> RunConfig:
        """The values of all keys."""
        return from_dict(read_json(Path(self.path) / RESOLVED))

    @property
    def outcome(self) -> dict[str, Any]:
        """Status (finished, preempted, interrupted, failed), exit code and step of the last session."""
        return read_outcome(Path(self.path))

    @property
    def steps(self) -> list[int]:
        """Steps of the checkpoints, in ascending order."""
        return sorted(checkpoint_steps(Path(self.path) / CHECKPOINTS))

    def checkpoint(self, which: str | int = "latest") -> Path:
        """Return the folder of a checkpoint: "latest", "best" or a step. Raises `ProjectError` if absent."""
        folder = Path(self.path) / CHECKPOINTS / str(which)
        if not folder.is_dir():
            saved = f"steps with a checkpoint: {', '.join(map(str, self.steps)) or 'none'}"
            hint = f"{saved}; best needs trainer.metric_for_best_model" if which == BEST else saved
            message = f"there is no checkpoint {which}"
            raise ProjectError("no-checkpoint", message, hint, str(self.path), EXIT_USAGE)
        return folder.resolve()

    def metrics(self) -> pd.DataFrame:
        """Return the logged metrics, a row per step with evaluations merged into it, indexed by `step`."""
        import pandas as pd

        rows: dict[int, dict[str, Any]] = {}
        for row in read_metrics(Path(self.path) / METRICS):
            rows.setdefault(row["step"], {}).update(row)
        frame = pd.DataFrame([rows[step] for step in sorted(rows)])
        return frame.set_index("step") if len(frame) else frame
