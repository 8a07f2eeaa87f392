"""`evaluate glue`: one fine-tuning run per task and seed, each with preflight checks, and their scores."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from itertools import starmap
from pathlib import Path
from typing import Any

from launcher.commands import train
from launcher.commands.evaluation import DATA, output_folder
from launcher.commands.glue_points import RANDOM, GlueRequest, GlueRun, GlueSuite
from launcher.commands.selection import Selection
from launcher.commands.sweep_runs import STOPPED, train_point
from launcher.io.files import make_folder, require_source, write_json, write_text
from launcher.probes.gpus import probe_gpus
from launcher.probes.probe import UnsupportedError
from launcher.process.json_child import run_json_child
from launcher.process.trainer_process import Topology
from launcher.run.next_command import resume_command
from launcher.rundir.records import parse_json, read_json
from launcher.terminal import console
from launcher.terminal.table import format_columns
from launcher.terminal.values import result_json
from neobert.config.schema import HfModelConfig
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.evaluation.glue.settings import is_neobert, missing_size_keys
from neobert.evaluation.glue.summary import (
    KIND,
    SCHEMA_VERSION,
    averages,
    report_notes,
    suite_summary,
    task_summary,
)
from neobert.evaluation.glue.tasks import LEFT_OUT, SUITES, TASKS
from neobert.families.hf.spec import read_model_settings
from neobert.folder_lock import FolderInUseError, lock_folder
from neobert.printable import printable
from neobert.runfiles.checkpoint.model_files import WEIGHT_FILES
from neobert.runfiles.evaluation_report import SUMMARY, WEIGHTS, format_score
from neobert.runfiles.model_folder import NEOBERT_FOLDER, model_folder
from neobert.runfiles.run_dir import CHECKPOINTS, CONFIG

MODULE = "neobert.evaluation.glue"
RESULTS = "glue.json"
DEFAULT_TASKS = "glue"


def run(request: GlueRequest, output_format: str) -> int:
    """Train the tasks and seeds that are not finished, and print the scores of all.

    Returns the first exit code that is not 0. Raises `ProjectError` if another process evaluates into this
    folder: its run without a checkpoint would look stopped, and would be deleted.
    """
    _require_valid_tasks(request)
    data, model = require_source(request.data, DATA), model_folder(request.folder.absolute())
    try:
        with output_folder(request.output) as output, lock_folder(output):
            return _train_missing_points(_make_suite(request, data, model, output), output_format)
    except FolderInUseError:
        message = "another evaluation writes to this folder"
        hint = "wait until that process ends, or choose another --output"
        raise ProjectError("glue-running", message, hint, str(request.output.absolute())) from None


def _train_missing_points(suite: GlueSuite, output_format: str) -> int:
    _refuse_unusable_overrides(suite)
    request, code = suite.request, EXIT_OK
    for number, (task, seed) in enumerate(request.ordered_runs(), 1):
        point, parent = suite.make_run(task, seed), suite.parent(task, seed)
        if suite.is_finished(point):
            continue
        if parent is not None and not suite.is_finished(parent):
            console.log(f"{task.name}, seed {seed}: not run, because {parent.task.name} did not finish")
            continue
        console.log(f"run {number} of {len(request.tasks) * request.seeds}: {task.name}, seed {seed}")
        if not (point.folder / CHECKPOINTS).is_dir():  # without checkpoints, it cannot be resumed
            shutil.rmtree(point.folder, ignore_errors=True)
        ended = _train_point(point, request)
        code = code or ended
        if ended in STOPPED:
            console.log(f"the evaluation was stopped; {resume_command(has_checkpoint=True)}")
            return ended
        if ended == EXIT_OK:
            if suite.result(point) is None:
                console.log(f"{task.name}, seed {seed}: no evaluation reported {task.metrics[0]}")
            _write_report(suite)
            _delete_checkpoints(suite, [point] if task.name not in request.source_tasks() else [])
    _delete_checkpoints(suite, starmap(suite.make_run, request.ordered_runs()))
    report = _write_report(suite)
    console.write(result_json(report) if output_format == "json" else _scores_text(report))
    return code


def _make_suite(request: GlueRequest, data: str, model: Path, output: Path) -> GlueSuite:
    settings = _read_model_config(model)
    if not request.random_weights and not any(model.glob(WEIGHT_FILES)):
        message = f"the model folder has no weights ({WEIGHT_FILES})"
        raise ProjectError("glue-model", message, "pass a folder with safetensors", str(model), EXIT_USAGE)
    device = request.device or ("cuda" if _has_gpu() else "cpu")
    content = {
        "tasks": list(request.tasks),
        "data": data,
        "output": str(output / "data"),
        "weights": str(model),
    }
    prepared = run_json_child(MODULE, content, doing="reading the tasks", hint="see the output above")
    earlier = read_json(output / RESULTS).get("tasks", {})
    recorded = {each["digest"]: each for summary in earlier.values() for each in summary["runs"]}
    return GlueSuite(request, model, settings, device, prepared["tasks"], prepared["weights"], recorded)


def _has_gpu() -> bool:
    try:
        return bool(probe_gpus())
    except UnsupportedError:
        return False


def _require_valid_tasks(request: GlueRequest) -> None:
    if unknown := [name for name in request.tasks if name not in TASKS]:
        message = f"{printable(', '.join(unknown))} is not a task or suite"
        if (reason := LEFT_OUT.get(unknown[0])) is not None:
            message = f"task {unknown[0]} is not supported: {reason}"
        hint = f"choose tasks ({', '.join(TASKS)}) or suites ({', '.join(suite.name for suite in SUITES)})"
        raise ProjectError("glue-tasks", message, hint, "--tasks", EXIT_USAGE)
    if request.transfers and not request.source_tasks():
        starts = {name: TASKS[name].starts_from for name in request.tasks}
        known = [f"{source} (for {name})" for name, source in starts.items() if source]
        hint = f"add to --tasks: {', '.join(known)}" if known else "remove --transfer"
        message = "no task of --tasks starts from another one, so --transfer has no effect"
        raise ProjectError("glue-tasks", message, hint, "--transfer", EXIT_USAGE)


def _read_model_config(model: Path) -> dict[str, Any]:
    """Read config.json of a model.

    Raises `ProjectError` if it cannot be read, lacks a size, or is of a model that cannot be trained.
    """
    try:
        settings = parse_json(model / CONFIG)
    except (OSError, ValueError) as error:
        raise ProjectError(
            "glue-model", f"the model's config.json cannot be read: {error}", place=str(model / CONFIG)
        ) from None
    if not is_neobert(settings):
        read_model_settings(HfModelConfig(config=str(model)))
    elif missing := missing_size_keys(settings):
        message = f"the folder has no NeoBERT model: its config.json has no {', '.join(missing)}"
        raise ProjectError("glue-model", message, NEOBERT_FOLDER, str(model), EXIT_USAGE)
    return settings


def _delete_checkpoints(suite: GlueSuite, points: Iterable[GlueRun]) -> None:
    """Delete the checkpoints of finished runs unless the request keeps them.

    All checkpoints of a large model's runs would fill a disk.
    """
    for point in points:
        if not suite.request.keeps_checkpoints and suite.result(point) is not None:
            shutil.rmtree(point.folder / CHECKPOINTS, ignore_errors=True)


def _refuse_unusable_overrides(suite: GlueSuite) -> None:
    """Raise `ProjectError` for an override with an unknown key or a wrong value, once for all runs."""
    if suite.request.overrides:
        task, seed = next(suite.request.ordered_runs())
        _point_selection(suite.make_run(task, seed), suite.request).resolve()


def _train_point(point: GlueRun, request: GlueRequest) -> int:
    """Train one run and return its exit code; its output goes to standard error."""
    launch = train.TrainRequest(
        _point_selection(point, request),
        Topology(),
        dry_run=False,
        strict=False,
        keeps_checkpoints=request.keeps_checkpoints,
    )
    return train_point(launch, "json")


def _point_selection(point: GlueRun, request: GlueRequest) -> Selection:
    make_folder(point.file.parent)
    write_json(point.file, point.settings)
    data = ("dataset", *(f"dataset.{name}" for name in ("path", "train_split", "validation_split")))
    model = [f"{name}.{key}" for name in ("model", "tokenizer") for key in point.settings[name]]
    if point.start.tasks:  # its weights are those of another run
        model.remove("model.pretrained_checkpoint")
    arguments = dict.fromkeys(data, str(request.data)) | dict.fromkeys(model, str(request.folder))
    return Selection(None, (point.file,), request.overrides, arguments)


def _write_report(suite: GlueSuite) -> dict[str, Any]:
    """Write glue.json if any run has a result, and return its content."""
    report = _make_report(suite)
    if report["tasks"]:
        write_text(suite.request.output / RESULTS, result_json(report))
    return report


def _make_report(suite: GlueSuite) -> dict[str, Any]:
    request = suite.request
    results = {
        name: list(filter(None, (suite.result(suite.make_run(TASKS[name], n)) for n in range(request.seeds))))
        for name in request.tasks
    }
    tasks = {name: task_summary(name, suite.files[name], runs) for name, runs in results.items() if runs}
    missing = [name for name, runs in results.items() if len(runs) < request.seeds]
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "model": str(suite.model),
        WEIGHTS: RANDOM if request.random_weights else suite.weights,
        "device": suite.device,
        "overrides": list(request.overrides),
        "seeds": request.seeds,
        "tasks": tasks,
        "averages": averages(tasks),
        "missing": missing,
        SUMMARY: suite_summary(tasks, missing, request.overrides),
    }


def _scores_text(report: Mapping[str, Any]) -> str:
    rows = [["task", "score", "metrics", "seeds", "starts from"]]
    for name, task in report["tasks"].items():
        metrics = ", ".join(
            f"{metric} {_mean_and_deviation(values)}" for metric, values in task["metrics"].items()
        )
        starts = ", ".join(task["starts_from"])
        rows.append([name, _mean_and_deviation(task["score"]), metrics, str(len(task["runs"])), starts])
    found = report["averages"]
    means = {"average": found["all"]} | {
        f"{name}: {len(suite['tasks'])} of {suite['of']}": suite["mean"]
        for name, suite in found["suites"].items()
    }
    rows += [[label, format_score(mean), "", "", ""] for label, mean in means.items()]
    return "\n".join([format_columns(rows), *report_notes(report["tasks"], report["missing"])])


def _mean_and_deviation(values: Mapping[str, Any]) -> str:
    return format_score(values["mean"], values["std"])
