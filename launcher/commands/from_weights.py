"""Run files that start from weights (`--from`) or from labelled texts, for `init` and `train`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from launcher.commands.previewed_text import (
    as_text_option_error,
    notes_on_splits,
    preview_by_line,
    preview_text,
    warn_of_skipped_files,
)
from launcher.commands.starter_file import Device
from launcher.commands.starting_weights import CONTEXT, OPTION, as_from_option_error, find_weights
from launcher.commands.weights_run_file import ADAPTER, RunFileInputs, run_file_yaml
from launcher.io.files import convert_write_errors, make_folder
from neobert.atomic_write import write_atomically
from neobert.config.overrides import format_text_override, parse_overrides
from neobert.config.schema import DatasetConfig, TokenizerConfig
from neobert.data.sources.preview import Preview
from neobert.data.sources.rows import TEXT_SETTING, text_rows
from neobert.data.sources.text_files import ALL_COLUMNS
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.families.table import model_shape
from neobert.plan.token_rate import bytes_per_token
from neobert.tasks.labelled_table import (
    LabelledTable,
    note_on_rows,
    read_columns,
    renamed_answers,
)
from neobert.tasks.spec import TaskSpec
from neobert.tasks.specs import SPECS, spec_of, text_task
from neobert.tasks.table_files import has_evaluation_split, read_share, training_tables
from profiles.registry import resolve_run

OF_CONVERSATIONS = ("DAT020", "SFT001")
"""Codes of errors about rows in a table that has the columns of conversations."""
NVIDIA_DEVICE = Path("/dev/nvidiactl")


@dataclass(frozen=True, slots=True)
class RunFileRequest:
    """Arguments of `init` and `train` for a run that starts from weights.

    Attributes:
        file: the run file to write.
        weights: folder or Hub name; None for random weights.
        text: file or folder; None to use `dataset`, a Hub dataset or builtin text.
        context: tokens per row; None for as many as cover the texts.
        named: given keys that determine others: columns, classification.problem, adapter.type.
    """

    file: Path
    weights: str | None
    task: str | None
    text: Path | None
    dataset: str | None
    device: Device
    context: int | None = None
    named: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> tuple[str, str]:
        """Config key and value that select the text."""
        return ("dataset.path", str(self.text)) if self.text else ("dataset.name", str(self.dataset))

    @property
    def command(self) -> str:
        """The command that writes the same file."""
        parts: list[str] = ["neobert-launch", "init"]
        options: dict[str, object] = {
            OPTION: self.weights,
            "--task": self.task,
            "--text": self.text,
            "--dataset": self.dataset,
        }
        options[CONTEXT] = self.context
        for name, value in options.items():
            parts += [] if value is None else [name, str(value)]
        for key, column in self.named.items():
            parts += [f"--{key}", column]
        return shlex.join([*parts, "--device", self.device, str(self.file)])


class RunFile(NamedTuple):
    """Content of a run file.

    Attributes:
        notes: one line each on what was inferred from labelled texts and from names of files.
        preview: the first texts; None for labelled rows.
    """

    content: str
    notes: Sequence[str]
    preview: Preview | None


def write_from_weights(request: RunFileRequest, *, replaces: bool = False) -> Sequence[str]:
    """Write a new run file, or replace one; print warnings about its text and return its notes.

    Raises `ProjectError` and writes nothing if a run cannot use the weights, the text or the labels.
    """
    made = make_run_file(request)
    if made.preview is not None:
        warn_of_skipped_files(made.preview)
    write_run_file(request.file, made.content, replaces=replaces)
    return made.notes


def make_run_file(request: RunFileRequest) -> RunFile:
    """Read weights and text, and return the content of a run file.

    Raises `ProjectError` if a run cannot use the weights, the text or the labels.
    """
    if request.context is not None and request.weights is None:
        message, hint = f"{CONTEXT} is given without {OPTION}", f"add {OPTION}, or leave out {CONTEXT}"
        raise ProjectError("usage", message, hint, "", EXIT_USAGE)
    overrides = () if request.task is None else [format_text_override("task", request.task)]
    spec = spec_of(resolve_run(None, (), overrides).config)
    if request.weights is None and spec.predicts == "next":
        message = f"task {spec.name} fine-tunes a causal model, but {OPTION} is not given"
        of_text = text_task(is_causal=True).name
        hint = f"add {OPTION} MODEL: a name on the Hub, a folder, or a run of `init --task {of_text}`"
        raise ProjectError("usage", message, hint, "", EXIT_USAGE)
    try:
        weights = None if request.weights is None else find_weights(request.weights)
        if weights is not None and request.task is None:
            config = resolve_run(None, (), weights.overrides).config
            spec = text_task(is_causal=model_shape(config, 1).attention.is_causal)
            spec = _conversation_task(request, spec) or spec
        found, table = _read_text_or_table(request, spec)
        by_line = preview_by_line(request.text, found) if request.text and found else None
        found = by_line or found
        sample = table.sample if table else found.sample if found else ()
        tokenizer = TokenizerConfig(path=None if weights is None else str(weights.folder))
        content = run_file_yaml(
            RunFileInputs(
                command=request.command,
                file=request.file,
                weights=weights,
                task=spec.keys.name,
                text=request.source,
                lengths=table.lengths if table else _sample_sizes(found),
                read_share=_read_share(request.text, table, found),
                documents=None if found is None else found.documents,
                is_by_line=by_line is not None,
                bytes_per_token=bytes_per_token(sample, tokenizer),
                text_column=None if table else request.named.get(TEXT_SETTING),
                has_evaluation=table is not None and has_evaluation_split(Path(str(request.text))),
                table=table,
                device=request.device,
                context=request.context,
                adapter=request.named.get(ADAPTER),
            )
        )
    except ProjectError as error:
        error = as_from_option_error(error)
        raise error if request.task else hint_at_other_tasks(error, request.text, spec) from None
    splits = notes_on_splits(request.text, ALL_COLUMNS if table else text_rows(DatasetConfig()))
    if table:
        return RunFile(content, (*table.notes, *note_on_rows(table), *splits), None)
    tasks = () if request.task else notes_on_tasks(request.text, spec)
    return RunFile(content, (*splits, *tasks), found)


def select_determining_keys(overrides: Sequence[str]) -> dict[str, str]:
    """Return the values, by key, of the overrides that determine other keys."""
    return {each.path: each.text for each in parse_overrides(overrides) if determines_other_keys(each.path)}


def determines_other_keys(path: str) -> bool:
    """Return whether `init` derives other keys (columns, labels or the learning rate) from this key."""
    return path.endswith(("_column", ".problem")) or path == ADAPTER


def write_run_file(file: Path, content: str, *, replaces: bool = False) -> None:
    """Write a new file in UTF-8, or replace one atomically. Raises ProjectError if that fails."""
    encoded = content.encode("utf-8")
    make_folder(file.parent)
    with convert_write_errors(file, "choose another folder"):
        if replaces:
            write_atomically(file, encoded)
        else:
            _create_file(file, encoded)


def _create_file(file: Path, content: bytes) -> None:
    """Write a new file; remove an incomplete one. Raises OSError if it exists or cannot be written."""
    try:
        with file.open("xb") as new:
            new.write(content)
    except FileExistsError:
        raise
    except OSError:
        file.unlink(missing_ok=True)
        raise


def _read_text_or_table(
    request: RunFileRequest, spec: TaskSpec
) -> tuple[Preview | None, LabelledTable | None]:
    if not spec.reads_table:
        column = text_column(request.named, spec)
        return None if request.text is None else preview_text(request.text, column), None
    if request.text is None:
        message = f"task {request.task} reads its columns from local files, but --text is not given"
        hint = "add --text FILE: CSV, TSV, JSON lines or parquet"
        raise ProjectError("usage", message, hint, "", EXIT_USAGE)
    if (inferring := _inferring_module(spec)) is None:
        message = f"init infers no columns for task {spec.name}: there is no {spec.keys.package}.inferred"
        hint = f"write a run file with `task: {spec.name}` and dataset.path, or add this module"
        raise ProjectError("usage", message, hint, "--task", EXIT_USAGE)
    try:
        return None, inferring.infer(request.text, request.named)
    except ProjectError as error:
        raise as_text_option_error(error) from None


def text_column(named: Mapping[str, str], spec: TaskSpec) -> str | None:
    """Return the named column of plain text; None for the usual names.

    Raises `ProjectError` for a key that only tasks of tables read.
    """
    for key in named.keys() - {TEXT_SETTING, ADAPTER}:
        hint = f"remove --{key}, or set --task to a task that reads {key}"
        raise ProjectError("usage", f"task {spec.name} does not read {key}", hint, "", EXIT_USAGE)
    return named.get(TEXT_SETTING)


def _inferring_module(spec: TaskSpec) -> ModuleType | None:
    """Import the module with a task's function `infer`; None if the task has none."""
    name = f"{spec.keys.package}.inferred"
    return None if find_spec(name) is None else import_module(name)


def _conversation_task(request: RunFileRequest, spec: TaskSpec) -> TaskSpec | None:
    """Return the task for conversations, or None if the text has none or the model cannot learn them.

    A table with the columns of conversations counts as conversations even if a row is malformed:
    `_read_text_or_table` reports the row.
    """
    for each in SPECS.values():
        if not each.stores_targets or each.predicts != spec.predicts or request.text is None:
            continue
        if (inferring := _inferring_module(each)) is not None:
            if not _has_tables(request.text):
                return None
            try:
                inferring.infer(request.text, request.named)
            except ProjectError as error:
                if error.code not in OF_CONVERSATIONS:
                    continue
            return each
    return None


def _has_tables(text: Path) -> bool:
    """Return whether the text is a file, or a folder with a table."""
    with suppress(ProjectError):
        return bool(training_tables(text))
    return text.is_file()


def notes_on_tasks(text: Path | None, chosen: TaskSpec) -> tuple[str, ...]:
    """Return a note for each task other than `chosen` for which the table has the columns."""
    return tuple(f"{text} is read as plain text; {each}" for each in _suggest_other_tasks(text, chosen))


def hint_at_other_tasks(error: ProjectError, text: Path | None, chosen: TaskSpec) -> ProjectError:
    """Return the error with other tasks, for which the table has the columns, in its hint."""
    others = [f"; or, {each}" for each in _suggest_other_tasks(text, chosen)]
    return replace(error, hint=error.hint + "".join(others))


def _suggest_other_tasks(text: Path | None, chosen: TaskSpec) -> Iterator[str]:
    if text is None or not text.is_file():
        return
    if chosen.predicts == "next":  # no causal model has a head of labels
        yield from () if chosen.stores_targets else _suggest_answer_task(text)
        return
    for spec in SPECS.values():
        if not spec.reads_table or spec.stores_targets or (inferring := _inferring_module(spec)) is None:
            continue
        with suppress(ProjectError):
            inferring.infer(text)
            targets = "pairs" if spec.predicts == "pairs" else "labels"
            yield f"to train on its {targets}, add --task {spec.name}"


def _suggest_answer_task(text: Path) -> Iterator[str]:
    """Yield a suggestion to rename the columns of a table with questions and answers; else nothing."""
    with suppress(ProjectError):
        if renamed := renamed_answers(each.name for each in read_columns(text)[0]):
            task = next(each for each in SPECS.values() if each.stores_targets and each.predicts == "next")
            yield f"to train on its answers, rename columns {renamed}, and add --task {task.name}"


def _read_share(text: Path | None, table: LabelledTable | None, preview: Preview | None) -> float | None:
    """Return the share of the text in the rows or sample that were read, or None if it is unknown."""
    if table is not None:
        return 1.0 if table.first_rows is None else read_share(Path(str(text)), table.first_rows)
    if preview is None or not (preview.is_plain and preview.size_bytes):
        return None
    return sum(_sample_sizes(preview)) / preview.size_bytes


def _sample_sizes(preview: Preview | None) -> tuple[int, ...]:
    return tuple(len(text.encode("utf-8", "replace")) for text in preview.sample) if preview else ()


def default_device() -> Device:
    """Return `gpu` on a machine with an NVIDIA device, else `cpu`."""
    return "gpu" if NVIDIA_DEVICE.exists() else "cpu"
