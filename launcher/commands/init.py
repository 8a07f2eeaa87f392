"""`init`: write a first run file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from launcher.commands.from_weights import RunFileRequest as WeightsRequest
from launcher.commands.from_weights import (
    default_device,
    determines_other_keys,
    hint_at_other_tasks,
    notes_on_tasks,
    select_determining_keys,
    text_column,
    write_from_weights,
    write_run_file,
)
from launcher.commands.previewed_text import (
    notes_on_splits,
    preview_by_line,
    preview_text,
    warn_of_one_document,
    warn_of_skipped_files,
)
from launcher.commands.starter_file import Device, SizeName, StarterInputs, starter_yaml
from launcher.terminal import console
from launcher.terminal.values import result_json, show_count, show_duration
from neobert.config.overrides import parse_overrides
from neobert.config.schema import DatasetConfig, RunConfig
from neobert.data.sources.rows import text_rows
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.families.neobert.spec import NEOBERT
from neobert.families.table import model_family
from neobert.printable import printable
from neobert.tasks.specs import spec_of, text_task
from profiles.registry import resolve_run
from validators.planning import plan_run

YAML_SUFFIXES = (".yaml", ".yml")
BUILTIN = "builtin:python-docs"
BY_LINE = "dataset.document_per_line"


@dataclass(frozen=True, slots=True)
class InitRequest:
    """Arguments of `init`; an option that was not given is None."""

    file: Path
    text: Path | None
    dataset: str | None
    size: SizeName | None
    device: Device | None
    weights: str | None = None
    task: str | None = None
    context: int | None = None
    overrides: Sequence[str] = ()


def run(request: InitRequest, output_format: str) -> int:
    """Write the run file and print the next commands. Raises ProjectError if a run cannot use the request."""
    _require_new_yaml_file(request.file)
    notes = _write_run_file(request)
    resolved = resolve_run(None, [request.file])
    dataset = resolved.config.dataset
    if not dataset.document_per_line and BY_LINE not in spec_of(resolved.config).unread_keys:
        warn_of_one_document(str(dataset.path or ""))
    plan = plan_run(resolved)
    result = {
        "file": str(request.file),
        "inferred": list(notes),
        "profile": resolved.profile.name if resolved.profile else None,
        "next": [f"neobert-launch {verb} {quote(str(request.file))}" for verb in ("lint", "plan", "train")],
        "checkpoint": _checkpoint_folder(resolved.config),
        "use": _loading_expression(resolved.config),
        "parameters": plan.num_parameters.value,
        "eta_s": plan.eta_s.value,
    }
    console.write(result_json(result) if output_format == "json" else _report_text(result))
    return EXIT_OK


def _checkpoint_folder(config: RunConfig) -> str:
    """Return the folder of the run's best checkpoint, or its newest if it keeps no best one."""
    name = "best" if config.trainer.metric_for_best_model else "latest"
    return os.path.join(config.trainer.output_dir, "checkpoints", name)


def _loading_expression(config: RunConfig) -> str:
    checkpoint = _checkpoint_folder(config)
    trust = ", trust_remote_code=True" if model_family(config) is NEOBERT else ""
    spec = spec_of(config)
    if spec.predicts == "pairs":
        return f"SentenceTransformer({checkpoint!r}{trust})"
    auto_class = model_family(config).model_class or spec.auto_class
    call = "pipeline('fill-mask', " if spec.predicts == "masked" else f"{auto_class}.from_pretrained("
    return f"{call}{checkpoint!r}{trust})"


def _report_text(result: dict[str, Any]) -> str:
    commands: list[str] = result["next"]
    glosses = ("check the file", "size, memory and time", "Ctrl-C saves; the same command continues")
    width = max(map(len, commands)) + 2
    size, eta = show_count(result["parameters"]), show_duration(result["eta_s"])
    file = console.paint(printable(result["file"]), "bold")
    lines = [f"wrote {file}: {size} parameters, about {eta} of training", *result["inferred"], "", "next:"]
    for command, gloss in zip(commands, glosses, strict=True):
        lines.append(f"  {printable(command):{width}}{console.paint(gloss, 'dim')}")
    lines += ["", "then, in Python:", f"  {result['use']}"]
    return "\n".join(lines)


def _require_new_yaml_file(file: Path) -> None:
    if os.path.lexists(file):
        message, hint = (
            "the file exists, and init does not overwrite files",
            "choose another file: neobert-launch init FILE",
        )
        raise _usage_error("occupied-file", message, hint, file)
    if file.suffix.lower() not in YAML_SUFFIXES:
        raise _usage_error(
            "unusable-path", "init writes YAML files only", f"change the name to {file.stem}.yaml", file
        )


def _write_run_file(request: InitRequest) -> Sequence[str]:
    """Write the run file; return notes on what was inferred from labelled texts and names of files.

    Raises ProjectError for options that contradict each other.
    """
    if others := [
        each.path for each in parse_overrides(request.overrides) if not determines_other_keys(each.path)
    ]:
        hint = f"remove --{others[0]}, and set {others[0]} in the file that init writes"
        raise _usage_error(
            "usage",
            f"init accepts only columns, classification.problem and adapter.type as keys, not {others[0]}",
            hint,
        )
    pretraining = [text_task(is_causal=is_causal).name for is_causal in (False, True)]
    if request.weights is None and request.context is None and request.task in (None, *pretraining):
        write_run_file(request.file, starter_yaml(_make_starter(request), request.file))
        tasks = () if request.task else notes_on_tasks(request.text, text_task(is_causal=False))
        return (*notes_on_splits(request.text, text_rows(DatasetConfig())), *tasks)
    named = select_determining_keys(request.overrides)
    if request.size is not None:
        message = (
            "--size applies only to pretraining from random weights: here, weights or profile set the size"
        )
        raise _usage_error("usage", message, "remove --size")
    text, dataset = _text_or_dataset(request)
    device = request.device or default_device()
    return write_from_weights(
        WeightsRequest(
            request.file, request.weights, request.task, text, dataset, device, request.context, named
        )
    )


def _text_or_dataset(request: InitRequest) -> tuple[Path | None, str | None]:
    """Return the text's path and the dataset's name, one of which is None.

    Raises ProjectError unless exactly one of the two is given.
    """
    text, dataset = request.text, request.dataset
    if text is not None and dataset is not None:
        raise _usage_error("usage", "--text and --dataset are both given", "keep one of --text and --dataset")
    if text is None and dataset is None:
        hint = f"add --text FILE or --dataset NAME; --dataset {BUILTIN} needs no text of your own"
        raise _usage_error("usage", "neither --text nor --dataset is given", hint)
    return text, dataset


def _make_starter(request: InitRequest) -> StarterInputs:
    text, dataset = _text_or_dataset(request)
    spec = text_task(is_causal=request.task == text_task(is_causal=True).name)
    column = text_column(select_determining_keys(request.overrides), spec)
    try:
        found = None if text is None else preview_text(text, column)
    except ProjectError as error:
        raise error if request.task else hint_at_other_tasks(error, text, spec) from None
    by_line = preview_by_line(text, found) if text is not None and found is not None else None
    found = by_line or found
    device = request.device or default_device()
    if found is not None:
        warn_of_skipped_files(found)
    return StarterInputs(
        text="" if text is None else str(text),
        dataset=dataset or "",
        size=request.size or ("tiny" if device == "cpu" else "small"),
        device=device,
        num_bytes=None if found is None else found.size_bytes,
        is_plain=found is not None and found.is_plain,
        has_evaluation=found is not None and found.num_eval_files > 0,
        documents=None if found is None else found.documents,
        is_by_line=by_line is not None,
        causal_task=spec.name if spec.predicts == "next" else None,
        text_column=column,
    )


def _usage_error(code: str, message: str, hint: str, location: Path | str = "") -> ProjectError:
    return ProjectError(code, message, hint, str(location), EXIT_USAGE)
