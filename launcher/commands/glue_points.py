"""Runs of `evaluate glue`: their order, initial weights, folders and results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from launcher.rundir.records import read_metrics, read_outcome
from neobert.evaluation.glue.settings import StartWeights, run_settings
from neobert.evaluation.glue.summary import best_evaluation
from neobert.evaluation.glue.task import GlueTask
from neobert.evaluation.glue.tasks import TASKS
from neobert.runfiles.checkpoint.folders import BEST
from neobert.runfiles.run_dir import CHECKPOINTS, METRICS

PRETRAINED, RANDOM = "pretrained", "random weights"


@dataclass(frozen=True, slots=True)
class GlueRequest:
    """Arguments of `evaluate glue`.

    Attributes:
        folder: folder of the encoder.
        data: folder with one subfolder per task, or the name of a Hub dataset.
        seeds: number of runs per task, whose seeds are 0 to `seeds` - 1.
        transfers: start a task from the best checkpoint of its `starts_from` task with the same seed, if
            that task is in `tasks`.
        overrides: `KEY=VALUE` for every run.
    """

    folder: Path
    data: Path
    output: Path
    tasks: tuple[str, ...]
    seeds: int
    device: str | None
    transfers: bool
    random_weights: bool
    keeps_checkpoints: bool
    overrides: tuple[str, ...]

    def source_task(self, name: str) -> str | None:
        """Return the task whose best checkpoint initializes task `name`, or None if no other task does."""
        source = TASKS[name].starts_from
        return source if self.transfers and source in self.tasks else None

    def source_tasks(self) -> set[str]:
        """Return the tasks whose best checkpoints initialize other tasks."""
        return {source for name in self.tasks if (source := self.source_task(name)) is not None}

    def ordered_runs(self) -> Iterator[tuple[GlueTask, int]]:
        """Yield task and seed of every run; a task comes after the task that initializes it."""
        for name in sorted(self.tasks, key=self._transfer_depth):
            yield from ((TASKS[name], seed) for seed in range(self.seeds))

    def _transfer_depth(self, name: str) -> int:
        source = self.source_task(name)
        return 0 if source is None else 1 + self._transfer_depth(source)


@dataclass(frozen=True, slots=True)
class GlueRun:
    """A run of one task and seed.

    Attributes:
        digest: hash of initial weights, data and settings; a finished run with this digest is not repeated.
        settings: content of its run file.
    """

    task: GlueTask
    seed: int
    start: StartWeights
    digest: str
    folder: Path
    file: Path
    settings: Mapping[str, Any]

    @property
    def best_checkpoint(self) -> Path:
        """Folder of the best checkpoint."""
        return self.folder / CHECKPOINTS / BEST


@dataclass(frozen=True, slots=True)
class GlueSuite:
    """Inputs of one `evaluate glue` command.

    Attributes:
        model: folder of the encoder; `settings` is its config.json.
        files: number of rows and digest of each task's files, by task.
        weights: digest of the encoder's weights.
        recorded: results in glue.json, by digest.
    """

    request: GlueRequest
    model: Path
    settings: Mapping[str, Any]
    device: str
    files: dict[str, Any]
    weights: str
    recorded: Mapping[str, dict[str, Any]]

    def make_run(self, task: GlueTask, seed: int) -> GlueRun:
        """Return the run of a task and seed, with its folder and digest."""
        output = self.request.output.absolute()
        start, origin = self._initial_weights(task, seed)

        def settings(folder: Path) -> dict[str, Any]:
            return run_settings(
                task,
                seed,
                model=self.settings,
                tokenizer=self.model,
                start=start,
                data=output / "data" / task.name,
                train_rows=self.files[task.name]["train"]["rows"],
                output=folder,
                device=self.device,
            )

        overrides = list(self.request.overrides)
        identity = [settings(Path("run")), origin, self.files[task.name]["digest"], overrides]
        digest = sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        folder = output / "runs" / task.name / f"seed-{seed}-{digest[:8]}"
        file = output / "configs" / f"{task.name}-seed-{seed}.json"
        return GlueRun(task, seed, start, digest, folder, file, settings(folder))

    def _initial_weights(self, task: GlueTask, seed: int) -> tuple[StartWeights, str]:
        """Return the initial weights of a run, and the string that identifies them in its digest."""
        if (parent := self.parent(task, seed)) is not None:
            return parent.start.continue_from(parent.task.name, parent.best_checkpoint), parent.digest
        if self.request.random_weights:
            return StartWeights(RANDOM, None), ""
        return StartWeights(PRETRAINED, self.model), self.weights

    def parent(self, task: GlueTask, seed: int) -> GlueRun | None:
        """Return the run whose best checkpoint initializes this run, or None if no other run does."""
        source = self.request.source_task(task.name)
        return None if source is None else self.make_run(TASKS[source], seed)

    def result(self, point: GlueRun) -> dict[str, Any] | None:
        """Return the best evaluation of a finished run, or None if there is none.

        A result in glue.json counts even if its run directory was removed.
        """
        if (known := self.recorded.get(point.digest)) is not None:
            return known
        metrics = point.folder / METRICS
        if read_outcome(point.folder).get("status") != "finished" or not metrics.is_file():
            return None
        best = best_evaluation(point.task, read_metrics(metrics))
        return best and {
            "seed": point.seed,
            "step": best.pop("step"),
            "metrics": best,
            "starts_from": point.start.label,
            "digest": point.digest,
            "run": str(point.folder),
        }

    def is_finished(self, point: GlueRun) -> bool:
        """Return whether a run has a result, and its best checkpoint if an unfinished run starts from it."""
        if self.result(point) is None:
            return False
        own, source_of = point.task.name, self.request.source_task
        later = (
            self.make_run(TASKS[name], point.seed) for name in self.request.tasks if source_of(name) == own
        )
        return point.best_checkpoint.exists() or all(self.is_finished(each) for each in later)
