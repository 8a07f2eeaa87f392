"""MLflow tracker: logs to the server at $MLFLOW_TRACKING_URI, or to mlflow.db in the run directory.

`mlflow ui --backend-store-uri sqlite:///RUN_DIR/mlflow.db` shows the database. The experiment is
$MLFLOW_EXPERIMENT_NAME, or neobert.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from neobert.trackers.tracker import TrackedRun, Tracker

URI_ENV, EXPERIMENT_ENV = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
DATABASE = "mlflow.db"
IDENTITY = "neobert.identity"
LONGEST_VALUE = 6000
"""Maximum length of a parameter value in MLflow, in characters."""
LONGEST_NAME = 250
REFUSED = re.compile(r"[^/\w.\- ]")
"""Characters that MLflow does not accept in metric names, but a corpus file name may contain."""


class MlflowSession:
    """MLflow tracker: all sessions of a run directory log to one MLflow run."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self._metric = Metric
        uri = os.environ.get(URI_ENV) or f"sqlite:///{(run.run_dir / DATABASE).absolute()}"
        self._client: Any = MlflowClient(tracking_uri=uri)
        experiment = self._find_or_create_experiment(os.environ.get(EXPERIMENT_ENV) or "neobert")
        found = self._client.search_runs([experiment], f"tags.`{IDENTITY}` = '{run.identity}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._create_run(experiment, run)

    def _find_or_create_experiment(self, name: str) -> str:
        """Return the ID of the experiment, creating it if needed; safe if another process does so too."""
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _create_run(self, experiment: str, run: TrackedRun) -> str:
        from mlflow.entities import Param

        created = self._client.create_run(experiment, run_name=run.name, tags={IDENTITY: run.identity})
        identity = str(created.info.run_id)
        params = [Param(name, value[:LONGEST_VALUE]) for name, value in _flatten_sections(run.settings)]
        for start in range(0, len(params), 100):  # the maximum of a call
            self._client.log_batch(identity, params=params[start : start + 100])
        return identity

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the metrics of a step to the MLflow run."""
        now_ms = int(time.time() * 1000)
        metrics = [
            self._metric(_valid_metric_name(name), value, now_ms, step) for name, value in values.items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        """Mark the MLflow run as finished; a later session sets it to running again."""
        self._client.set_terminated(self._id)


def _valid_metric_name(name: str) -> str:
    """Return a metric name that MLflow accepts: other characters become `_`, and the length is limited."""
    return REFUSED.sub("_", name)[:LONGEST_NAME]


def _flatten_sections(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Flatten nested settings to pairs of dotted name and value as text."""
    flat: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat += _flatten_sections(value, f"{prefix}{name}.")
        else:
            flat.append((prefix + name, str(value)))
    return flat


MLFLOW = Tracker(
    name="mlflow",
    package="mlflow-skinny",  # of which mlflow consists; it suffices for a server
    requirement="mlflow>=3",
    start=MlflowSession,
    folder=lambda run_dir, _settings: run_dir,
)
