"""`export`: convert a checkpoint, or the mean of several, to formats of other libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.io.files import require_existing, results_folder
from launcher.process.json_child import run_json_child
from launcher.terminal import console
from launcher.terminal.table import format_columns
from launcher.terminal.values import result_json
from neobert.errors import EXIT_CHECK_UNKNOWN, EXIT_OK, EXIT_USAGE, ProjectError
from neobert.export_formats import FORMATS, unknown_formats
from neobert.plurals import listed
from neobert.runfiles.checkpoint.folders import (
    best_or_newest_checkpoint,
    checkpoint_root,
    checkpoint_steps,
    find_checkpoint,
)
from neobert.runfiles.checkpoint.manifest import FILE_NAME, verify_checkpoint
from neobert.runfiles.checkpoint.model_files import WEIGHT_FILES
from neobert.runfiles.model_folder import adapter_only_message
from neobert.runfiles.run_dir import CONFIG, RESOLVED

MODULE = "neobert.export"
HINT = "see the output above; if memory ran out, use a machine with more memory"
MAX_DIGITS = 19
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
HEAD = ("format", "folder", "step", "largest difference", "read with")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportArguments:
    """Arguments of `export`.

    Attributes:
        source: run directory, checkpoint folder, or folder saved by transformers.
        average: number of newest checkpoints to average, or their steps; empty exports one checkpoint.
        results: reports of `evaluate` to include in the model card.
        dtype: dtype of the exported weights, a key of `DTYPES`.
    """

    source: Path
    formats: tuple[str, ...]
    output: Path
    average: str
    pooling: str | None
    results: tuple[Path, ...] = ()
    dtype: str = "fp32"


def run(arguments: ExportArguments, output_format: str) -> int:
    """Export the model in each format, and print how far the outputs of each export differ; return 0."""
    require_formats(arguments.formats)
    _require_dtype_support(arguments.dtype, arguments.formats)
    folders = choose_folders(arguments.source, arguments.average)
    require_new_folders(arguments.output, arguments.formats)
    require_packages(arguments.formats)
    _require_usable_results(arguments)
    request = {
        "folders": [str(folder.absolute()) for folder in folders],
        "formats": list(arguments.formats),
        "output": str(arguments.output.absolute()),
        "pooling": arguments.pooling,
        "results": [str(file.absolute()) for file in arguments.results],
        "dtype": DTYPES[arguments.dtype],
    }
    with results_folder(arguments.output):
        report = run_json_child(MODULE, request, doing="loading the model", hint=HINT)
    is_json = output_format == "json"
    console.write(result_json({"formats": report}) if is_json else export_text(report, arguments.output))
    return EXIT_OK


def require_formats(names: Sequence[str]) -> None:
    """Raise `ProjectError` if no format is given, or for a name that is not an export format."""
    if not names or unknown_formats(names):
        near = [name for name in FORMATS if any(name.startswith(each) for each in unknown_formats(names))]
        meant = f"did you mean {near[0]}? " if near else ""
        raise ProjectError(
            "export-format",
            f"{listed(unknown_formats(names))} is not an export format"
            if names
            else "no export format is given",
            f"{meant}--to takes {', '.join(FORMATS)}, separated by commas",
            "--to",
            EXIT_USAGE,
        )


def _require_dtype_support(dtype: str, names: Sequence[str]) -> None:
    """Raise `ProjectError` if a format is not written in this dtype."""
    others = [name for name in names if name != "hf"]
    if dtype != "fp32" and others:
        message = f"{listed(others)} {'is' if len(others) == 1 else 'are'} written in fp32 only, not {dtype}"
        raise ProjectError("export-dtype", message, "pass --to hf, or remove --dtype", "--dtype", EXIT_USAGE)


def require_packages(names: Sequence[str]) -> None:
    """Raise `ProjectError` for the first format whose packages are missing, with the install command."""
    for name in names:
        missing = FORMATS[name].missing_packages()
        if missing:
            raise ProjectError(
                "export-package",
                f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
                FORMATS[name].install_command,
                f"--to {name}",
                EXIT_CHECK_UNKNOWN,
            )


def _require_usable_results(arguments: ExportArguments) -> None:
    """Raise `ProjectError` if a --results file does not exist, or no requested format has a model card."""
    for file in arguments.results:
        require_existing(file, "--results")
    if arguments.results and not any(FORMATS[name].has_card for name in arguments.formats):
        with_card = [each.name for each in FORMATS.values() if each.has_card]
        message = f"no exported format has a model card for these figures: --to {','.join(arguments.formats)}"
        hint = f"add {' or '.join(with_card)} to --to, or remove --results"
        raise ProjectError("export-results", message, hint, "--results", EXIT_USAGE)


def require_new_folders(output: Path, names: Sequence[str]) -> None:
    """Raise `ProjectError` if the output folder of a format exists, because its files may be in use.

    The hint names the formats that do not exist yet, because repeating the command does not resume an export.
    """
    existing = [name for name in names if (output / name).exists()]
    if existing:
        missing = ",".join(name for name in names if name not in existing)
        way = f"export the missing formats with --to {missing}, or " if missing else ""
        raise ProjectError(
            "occupied-folder",
            f"already contains {listed(existing)}",
            f"{way}choose a new --output",
            str(output),
            EXIT_USAGE,
        )


def choose_folders(source: Path, average: str) -> list[Path]:
    """Return the folder to export, or the folders to average.

    A run directory stands for its best checkpoint, or else its newest. Checkpoints are verified against their
    manifest; a folder without one is accepted if it has a config and weights, as transformers saves them.
    Raises `ProjectError` if there is nothing to export.
    """
    if not source.exists():
        raise _source_error(source, "no such folder")
    root = checkpoint_root(source)
    if average:
        if root is None:
            raise _source_error(source, "--average needs a run directory with checkpoints")
        return [_verify_checkpoint(root / str(step)) for step in steps_to_average(root, average)]
    if root is not None:
        return [best_or_newest_checkpoint(root)]
    if (source / CONFIG).is_file() and any(source.glob(WEIGHT_FILES)) and not (source / FILE_NAME).exists():
        return [source]
    if not (source / FILE_NAME).exists():
        raise _source_error(source, _why_nothing_to_export(source))
    found = find_checkpoint(source.parent, str(source))
    assert found is not None
    return [found[0]]


def _why_nothing_to_export(source: Path) -> str:
    if not source.is_dir():
        return "the source is a file, not a folder"
    if (source / RESOLVED).is_file():
        return "the run has no checkpoint yet (trainer.save_steps)"
    if reason := adapter_only_message(source):
        return f"the folder is {reason}"
    return f"the folder contains no checkpoint, and no {CONFIG} with weights ({WEIGHT_FILES})"


def steps_to_average(root: Path, average: str) -> list[int]:
    """Return the steps of the checkpoints to average.

    `average` is a number N, for the newest N checkpoints, or a comma-separated list of steps.

    Raises `ProjectError` for an invalid number, fewer than two different steps, or a missing checkpoint.
    """
    there = checkpoint_steps(root)
    parts = average.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < MAX_DIGITS for part in parts):
        raise _average_error(f"{average} is not a number of checkpoints or a list of steps", there)
    numbers = [int(part) for part in parts]
    if len(numbers) == 1 and numbers[0] > len(there):
        raise _average_error(f"--average {average} exceeds the number of checkpoints ({len(there)})", there)
    steps = numbers if len(numbers) > 1 else there[-numbers[0] :] if numbers[0] else []
    absent = [str(step) for step in steps if step not in there]
    if absent:
        raise _average_error(f"no checkpoint of step {', '.join(absent)}", there)
    if len(steps) < 2 or len(set(steps)) < len(steps):
        raise _average_error(f"--average {average} does not select at least two different checkpoints", there)
    return steps


def _verify_checkpoint(folder: Path) -> Path:
    verify_checkpoint(folder)
    return folder


def _source_error(source: Path, reason: str) -> ProjectError:
    hint = "pass a run directory, a checkpoint folder, or a folder saved by transformers"
    return ProjectError("export-source", reason, hint, str(source), EXIT_USAGE)


def _average_error(message: str, available: Sequence[int]) -> ProjectError:
    steps = ", ".join(map(str, available))
    return ProjectError("export-average", message, f"available checkpoints: {steps}", "--average", EXIT_USAGE)


def export_text(report: Mapping[str, Any], output: Path) -> str:
    """Format the report as a table of formats, their folders below `output`, and differences."""
    return format_columns([HEAD, *(_format_row(name, each, output) for name, each in report.items())])


def _format_row(name: str, report: Mapping[str, Any], output: Path) -> tuple[str, ...]:
    largest = max(report["max_difference"].values())
    package, version = next(iter(report["read_with"].items()))
    difference = f"{largest:.1e} (limit {report['limit']:g})"
    return name, str(output / name), _steps_text(report["source"]), difference, f"{package} {version}"


def _steps_text(source: Sequence[Mapping[str, Any]]) -> str:
    """Return the step of the exported checkpoint, or the averaged steps; `-` for a model without a step."""
    steps = ", ".join("-" if each["step"] is None else str(each["step"]) for each in source)
    return f"mean of {steps}" if len(source) > 1 else steps
