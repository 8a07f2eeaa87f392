"""A job that predicts for the rows of a file, resumable, with one process per GPU."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from neobert.encoding.processes import run_in_processes, throughput_report
from neobert.encoding.shards import Shards
from neobert.errors import ProjectError
from neobert.prediction.inputs import Inputs, open_inputs
from neobert.prediction.kinds import Prediction, read_model_task
from neobert.prediction.outputs import check_output, shard_lines, write_rows
from neobert.prediction.predictor import Scorer
from neobert.prediction.request import Request
from neobert.progress import Progress
from neobert.runfiles.model_folder import model_folder
from neobert.tasks.spec import TaskSpec

SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class ShareResult:
    """Result of one process: shards of the whole job, settings and classes of its model, tokens and time."""

    num_shards: int
    classes: tuple[str, ...]
    settings: dict[str, Any]
    tokens: int
    seconds: float


def run(request: Request) -> dict[str, Any]:
    """Predict the missing shards, merge all into the output and return a report. Raises `ProjectError`."""
    from neobert.encoding.placement import num_processes  # imports torch, which takes seconds

    request = replace(request, folder=str(model_folder(Path(request.folder))))
    inputs = _open_inputs(request)
    spec = read_model_task(Path(request.folder))
    check_output(Path(request.output), next(iter(inputs.rows())), spec.predicted)
    shards = _open_shards(request)
    with shards.lock(_job_identity(request, inputs)):
        shares = run_in_processes(
            _predict_share, request, num_processes(request.processes, request.device), "predicting"
        )
        first = shares[0]
        counts = shards.counts(first.num_shards)
        scores = _score_predictions(inputs, spec, first.classes, shards.files(first.num_shards))
        shards.merge(first.num_shards, partial(write_rows, inputs=inputs, suffix=shards.output.suffix))
    return {
        "output": request.output,
        **asdict(counts),
        **first.settings,
        **throughput_report(shares),
        **scores,
    }


def _score_predictions(
    inputs: Inputs, spec: TaskSpec, classes: Sequence[str], shards: Sequence[Path]
) -> dict[str, Any]:
    """Return scores and unreadable labels as entries of the report; empty if the rows have no labels."""
    if inputs.label is None:
        return {}
    scorer: Scorer = _predictor_class(spec).scorer(classes, inputs.names)
    predicted = (json.loads(line) for line in shard_lines(shards))
    unread, first = 0, ""
    for (place, label), item, prediction in zip(inputs.labels(), inputs.texts(), predicted, strict=True):
        try:
            if isinstance(label, ProjectError):
                raise label
            scorer.add(item, label, prediction, place)
        except ProjectError as error:
            unread, first = unread + 1, first or error.located_message
    return scorer.report() | ({"unread_labels": {"rows": unread, "first": first}} if unread else {})


def _predictor_class(spec: TaskSpec) -> Any:
    return import_module(f"{spec.keys.package}.prediction").PREDICTOR


def _open_inputs(request: Request) -> Inputs:
    folder = Path(request.folder)
    spec = read_model_task(folder)
    return open_inputs(Path(request.texts), folder, spec, request.column, request.pair_column)


def _open_shards(request: Request) -> Shards:
    return Shards(Path(request.output), SUFFIX, _json_lines)


def _json_lines(predictions: Sequence[Prediction]) -> bytes:
    return "".join(json.dumps(each) + "\n" for each in predictions).encode()


def _job_identity(request: Request, inputs: Inputs) -> dict[str, Any]:
    """Return all inputs that determine the predictions, as JSON values; a resume requires equal ones."""
    from neobert.encoding.placement import model_identity  # imports torch, which takes seconds

    return {
        "texts": inputs.identity(),
        **model_identity(Path(request.folder), request.device, request.dtype),
        "max_length": request.max_length,
        "every_class": request.every_class,
        "rows_per_shard": request.rows_per_shard,
    }


def _predict_share(request: Request, rank: int, size: int) -> ShareResult:
    """Predict the missing shards with the numbers `rank`, `rank + size`, `rank + 2 * size`, ..."""
    from neobert.encoding.placement import device_for_rank, resolve_placement

    folder = Path(request.folder)
    place = resolve_placement(device_for_rank(rank, size, request.device), request.dtype)
    predictor = _predictor_class(read_model_task(folder)).load(folder, *place, request.max_length)
    predictor.every_class = request.every_class
    inputs = _open_inputs(request)
    predictor.names = inputs.names
    started_s = time.perf_counter()
    which = "" if size == 1 else f" in process {rank + 1} of {size}"
    progress = Progress(f"predicting{which}", "texts")
    num_shards, done = _open_shards(request).write_missing(
        inputs.texts(),
        request.rows_per_shard,
        predictor,
        predictor.predict,
        progress,
        (rank, size),
    )
    return ShareResult(
        num_shards, predictor.classes, predictor.settings, done.tokens, time.perf_counter() - started_s
    )
