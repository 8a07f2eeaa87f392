"""`evaluate glue`: a guarded run for every task and seed, resumable, and a table of their scores."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from launcher.commands import train
from launcher.commands.selection import Selection, require_working_directory
from launcher.commands.sweep import STOPPED, train_point
from launcher.io.files import make_folder, write_json, write_text
from launcher.probes.gpus import probe_gpus
from launcher.probes.probe import UnsupportedError
from launcher.process.json_child import ask
from launcher.process.trainer_process import Topology
from launcher.run.summary import resume_command
from launcher.rundir.directory import METRICS
from launcher.rundir.records import parse_json, parse_lines, read_json
from launcher.terminal import console
from launcher.terminal.table import columns
from launcher.terminal.values import UNKNOWN, to_json
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.evaluation.glue.settings import Start, run_settings, unknown_sizes
from neobert.evaluation.glue.summary import KIND, VERSION, average, best_row, task_summary
from neobert.evaluation.glue.tasks import GLUE, TASKS, GlueTask
from neobert.printable import printable
from neobert.runfiles.checkpoint.folders import BEST
from neobert.runfiles.model_folder import model_folder
from neobert.runfiles.run_dir import CHECKPOINTS

MODULE = "neobert.evaluation.glue"
RESULTS = "glue.json"
PRETRAINED, RANDOM = "pretrained", "random weights"


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of the command.

    Attributes:
        folder: the encoder.
        data: folder with a folder for each task.
        seeds: number of runs per task; their seeds count from 0.
        transfers: tasks with a `starts_from` start from the best checkpoint of that task and seed.
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


@dataclass(frozen=True, slots=True)
class Point:
    """A run of one task and seed.

    Attributes:
        digest: identifies weights, data and settings; a finished run with it is not repeated.
    """

    task: GlueTask
    seed: int
    start: Start
    digest: str
    folder: Path
    file: Path


@dataclass(slots=True)
class Suite:
    """The state of an evaluation.

    Attributes:
        files: counts of each task's files.
        weights: digest of the encoder's weights.
        finished: results of runs, by task and seed.
    """

    request: Request
    model: Path
    device: str
    files: dict[str, Any]
    weights: str
    finished: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)


def run(request: Request, output_format: str) -> int:
    """Train what is missing, and print the scores; return the first exit code that is not 0."""
    require_working_directory()
    suite = _begin(request)
    code = EXIT_OK
    for number, (task, seed) in enumerate(_order(request), 1):
        point = _point(suite, task, seed)
        if point is None or _is_finished(suite, point):
            continue
        console.tell(f"run {number} of {len(request.tasks) * request.seeds}: {task.name}, seed {seed}")
        if not (point.folder / CHECKPOINTS).is_dir():  # nothing to continue from, also of a finished run
            shutil.rmtree(point.folder, ignore_errors=True)
        ended = _train(point, request.overrides)
        code = code or ended
        if ended in STOPPED:
            console.tell(f"the evaluation was stopped; {resume_command(has_checkpoint=True)}")
            return ended
        if ended == EXIT_OK:
            _record(suite, point)
            _drop_checkpoints(suite, [task] if task.name not in _sources(request) else [])
    _drop_checkpoints(suite, TASKS.values())
    report = _report(suite)
    console.write(to_json(report) if output_format == "json" else _table(report))
    return code


def _begin(request: Request) -> Suite:
    _refuse_unknown(request)
    model, output = model_folder(request.folder.absolute()), make_folder(request.output.absolute())
    settings = _config_of(model)
    device = request.device or ("cuda" if _has_gpu() else "cpu")
    content = {
        "tasks": list(request.tasks),
        "data": str(request.data.absolute()),
        "output": str(output / "data"),
        "weights": str(model),
    }
    prepared = ask(MODULE, content, hint="see the output above")
    write_json(output / "model.json", settings)
    suite = Suite(request, model, device, prepared["tasks"], prepared["weights"])
    for name, summary in read_json(output / RESULTS).get("tasks", {}).items():
        suite.finished |= {(name, int(each["seed"])): each for each in summary["runs"]}
    return suite


def _has_gpu() -> bool:
    try:
        return bool(probe_gpus())
    except UnsupportedError:
        return False


def _refuse_unknown(request: Request) -> None:
    if unknown := [name for name in request.tasks if name not in TASKS]:
        message, hint = f"no task {printable(', '.join(unknown))}", f"tasks are {', '.join(TASKS)}"
        raise ProjectError("glue-tasks", message, hint, "--tasks", EXIT_USAGE)
    if lacking := sorted(_sources(request) - set(request.tasks)):
        message = f"--transfer starts tasks from {', '.join(lacking)}, which is not among the tasks"
        raise ProjectError(
            "glue-tasks", message, f"add {', '.join(lacking)} to --tasks", "--tasks", EXIT_USAGE
        )


def _config_of(model: Path) -> dict[str, Any]:
    """Read config.json. Raises `ProjectError` for an encoder that classification cannot train."""
    try:
        settings = parse_json(model / "config.json")
    except (OSError, ValueError) as error:
        raise ProjectError(
            "glue-model", f"cannot be read: {error}", place=str(model / "config.json")
        ) from None
    missing = unknown_sizes(settings)
    if settings.get("model_type") != "neobert" or missing:
        message = "is not a NeoBERT: its config.json has "
        message += f"no {', '.join(missing)}" if missing else "another model_type"
        raise ProjectError("glue-model", message, "give a folder of this project", str(model), EXIT_USAGE)
    return settings


def _sources(request: Request) -> set[str]:
    """Return the tasks that others start from."""
    starts = {TASKS[name].starts_from for name in request.tasks} if request.transfers else set()
    return {str(name) for name in starts - {None}}


def _drop_checkpoints(suite: Suite, tasks: Iterable[GlueTask]) -> None:
    """Remove the checkpoints of recorded runs: those of many runs of a large model would fill a disk."""
    dropped = [] if suite.request.keeps_checkpoints else [task.name for task in tasks]
    for (name, _), result in suite.finished.items():
        folder = Path(result["run"]) / CHECKPOINTS
        if name in dropped and folder.is_relative_to(suite.request.output.absolute()):
            shutil.rmtree(folder, ignore_errors=True)


def _order(request: Request) -> Iterator[tuple[GlueTask, int]]:
    """Yield the runs; tasks that others start from come first."""
    sources = _sources(request)
    for name in sorted(request.tasks, key=lambda name: name not in sources):
        yield from ((TASKS[name], seed) for seed in range(request.seeds))


def _point(suite: Suite, task: GlueTask, seed: int) -> Point | None:
    """Describe a run; None if it starts from a run that failed."""
    request, output = suite.request, suite.request.output.absolute()
    start, source = Start(PRETRAINED, suite.model), suite.weights
    if request.random_weights:
        start, source = Start(RANDOM, None), ""
    if request.transfers and task.starts_from is not None:
        parent = _point(suite, TASKS[task.starts_from], seed)
        if parent is None or not _is_finished(suite, parent):
            console.tell(f"{task.name}, seed {seed}: not run, because it starts from {task.starts_from}")
            return None
        start = Start(f"{task.starts_from} (warm start)", parent.folder / CHECKPOINTS / BEST)
        source = parent.digest
    data = output / "data" / task.name

    def settings(folder: Path) -> dict[str, Any]:
        return run_settings(
            task,
            seed,
            model=read_json(output / "model.json"),
            tokenizer=suite.model,
            start=start,
            data=data,
            train_rows=suite.files[task.name]["train"]["rows"],
            output=folder,
            device=suite.device,
        )

    identity = [settings(Path("run")), source, suite.files[task.name]["digest"], list(request.overrides)]
    digest = sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    folder = output / "runs" / task.name / f"seed-{seed}-{digest[:8]}"
    file = output / "configs" / f"{task.name}-seed-{seed}.json"
    make_folder(file.parent)
    write_json(file, settings(folder))
    return Point(task, seed, start, digest, folder, file)


def _is_finished(suite: Suite, point: Point) -> bool:
    """Return whether a run is recorded, and has its best checkpoint if others start from it."""
    found = suite.finished.get((point.task.name, point.seed))
    if found is None or found.get("digest") != point.digest:
        return False
    waits = suite.request.transfers and any(
        TASKS[name].starts_from == point.task.name and (name, point.seed) not in suite.finished
        for name in suite.request.tasks
    )
    return not waits or (point.folder / CHECKPOINTS / BEST).exists()


def _train(point: Point, overrides: Sequence[str]) -> int:
    """Train a run. Its own report goes to standard error: the result of this command is the table."""
    selection = Selection(None, (point.file,), tuple(overrides))
    request = train.Request(selection, Topology(), dry_run=False, strict=False)
    return train_point(request, "json")


def _record(suite: Suite, point: Point) -> None:
    """Add the result of a finished run to the results on disk."""
    rows = parse_lines((point.folder / METRICS).read_text(encoding="utf-8"))
    best = best_row(point.task, rows)
    if best is None:
        console.tell(f"{point.task.name}, seed {point.seed}: no evaluation has {point.task.metrics[0]}")
        return
    suite.finished[point.task.name, point.seed] = {
        "seed": point.seed,
        "step": best.pop("step"),
        "metrics": best,
        "starts_from": point.start.label,
        "digest": point.digest,
        "run": str(point.folder),
    }
    write_text(suite.request.output / RESULTS, to_json(_report(suite)))


def _report(suite: Suite) -> dict[str, Any]:
    request = suite.request
    tasks = {}
    for name in request.tasks:
        runs = [suite.finished[name, seed] for seed in range(request.seeds) if (name, seed) in suite.finished]
        if runs:
            tasks[name] = task_summary(name, suite.files[name], runs)
    return {
        "kind": KIND,
        "version": VERSION,
        "model": str(suite.model),
        "weights": RANDOM if request.random_weights else suite.weights,
        "device": suite.device,
        "overrides": list(request.overrides),
        "seeds": request.seeds,
        "tasks": tasks,
        "average": average(tasks),
        "missing": [name for name in request.tasks if _num_runs(tasks, name) < request.seeds],
    }


def _num_runs(tasks: Mapping[str, Any], name: str) -> int:
    return len(tasks[name]["runs"]) if name in tasks else 0


def _table(report: Mapping[str, Any]) -> str:
    rows = [["task", "score", "metrics", "seeds", "starts from"]]
    for name, task in report["tasks"].items():
        metrics = ", ".join(f"{metric} {_shown(values)}" for metric, values in task["metrics"].items())
        starts = ", ".join(task["starts_from"])
        rows.append([name, _shown(task["score"]), metrics, str(len(task["runs"])), starts])
    found = report["average"]
    for label, key in (("average", "all"), ("without wnli, snli", "without_wnli_and_snli")):
        rows.append([label, UNKNOWN if found[key] is None else f"{100 * found[key]:.1f}", "", "", ""])
    notes = [
        f"{name}: not comparable with published scores: {reason}"
        for name, task in report["tasks"].items()
        for reason in task["not_comparable"]
    ]
    notes += [
        f"{name}: {copies:,} of {task['files']['dev']['rows']:,} development texts are in the training set"
        for name, task in report["tasks"].items()
        if (copies := task["files"]["dev"]["in_train"])
    ]
    if report["missing"]:
        notes.append(f"not finished: {', '.join(report['missing'])}")
    return "\n".join([columns(rows), *notes])


def _shown(values: Mapping[str, Any]) -> str:
    """Format mean and deviation in percent."""
    if values["mean"] is None:
        return UNKNOWN
    spread = "" if values["std"] is None else f" ± {100 * values['std']:.1f}"
    return f"{100 * values['mean']:.1f}{spread}"


DEFAULT_TASKS = ",".join(GLUE)
