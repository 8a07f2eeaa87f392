"""`data prepare` and `tokenizer train`, which run in a child process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.commands.selection import Selection
from launcher.io.files import make_folder, require_writable
from launcher.process.json_child import report_of
from launcher.report.prepared_view import prepared_text
from launcher.terminal import console
from launcher.terminal.table import columns
from launcher.terminal.values import result_json
from neobert.config import to_dict
from neobert.config.canonical import flatten
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.runfiles.prepared_parts import PartNumber
from profiles.registry import ResolvedRun
from validators.rules.data_parts import foreign_ids

PREPARE, PREPARE_PART = "neobert.data.store.prepare", "neobert.data.store.part"
JOIN = "neobert.data.store.join"
PREPARED = "manifest.json"
TOKENIZER = "tokenizer.json"
TRAIN_TOKENIZER = "neobert.data.tokenize.train_tokenizer"


def prepare(selection: Selection, output: Path | None, part: str | None, output_format: str) -> int:
    """Tokenize the text of a run into `output`, or into the cache if None, and print the report.

    `part`, such as 3/64, prepares a part of the text.
    """
    resolved = selection.require()
    if part is not None:
        return _prepare_part(resolved, output, PartNumber.of_option(part), output_format)
    if output is not None and not (output / PREPARED).exists():
        _check_new(output, "prepared text")
    folder = () if output is None else (str(output.absolute()),)
    report = _report_of(PREPARE, "preparing the data", resolved, folder)
    return _deliver_prepared(report, output_format)


def _prepare_part(resolved: ResolvedRun, output: Path | None, part: PartNumber, output_format: str) -> int:
    if output is None:
        hint = f"add --output DIR; part {part} is written to DIR/{part.folder}"
        raise ProjectError("no-folder", "--part needs a folder for the parts", hint, "--part", EXIT_USAGE)
    arguments = (str(output.absolute()), part.option)
    report = _report_of(PREPARE_PART, f"preparing part {part}", resolved, arguments)
    return _deliver_prepared(report, output_format)


def join(folder: Path, output_format: str) -> int:
    """Join the parts of a text and print the report."""
    hint = "see the output above"
    report = report_of(JOIN, {"folder": str(folder.absolute())}, doing="joining the parts", hint=hint)
    return _deliver_prepared(report, output_format)


def _deliver_prepared(report: dict[str, Any], output_format: str) -> int:
    """Print the report. Raises DAT040 for text that was prepared from the ids of another tokenizer."""
    console.write(result_json(report) if output_format == "json" else prepared_text(report))
    for violation in foreign_ids(report.get("token_ids", {})):
        raise ProjectError("DAT040", violation.message, violation.hint, violation.path)
    return EXIT_OK


def train_tokenizer(selection: Selection, output: Path, output_format: str) -> int:
    """Train the tokenizer of a run, save it in the new folder `output`, and print the report."""
    resolved = selection.require()
    _check_new(output, "a tokenizer")
    make_folder(output.absolute().parent)
    require_writable(output.absolute() / TOKENIZER if output.exists() else output.absolute())
    report = _report_of(TRAIN_TOKENIZER, "training the tokenizer", resolved, (str(output),))
    deliver_report(report, output_format)
    return EXIT_OK


def _check_new(output: Path, content: str) -> None:
    """Raise ProjectError unless the folder is new or empty, because existing files may be in use."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    message = (
        "the folder is not empty" if output.is_dir() else f"is a file, but {content} is written to a folder"
    )
    raise ProjectError("occupied-folder", message, "choose a new folder", str(output), EXIT_USAGE)


def _report_of(module: str, doing: str, resolved: ResolvedRun, arguments: Sequence[str]) -> dict[str, Any]:
    hint = _hint(resolved.config.dataset.num_proc)
    return report_of(module, to_dict(resolved.config), arguments, doing=doing, hint=hint)


def _hint(num_proc: int) -> str:
    """Return the hint for a child process that ended without reporting an error."""
    less = f"set dataset.num_proc below {num_proc}" if num_proc > 1 else "use a machine with more memory"
    return f"see the output above; if memory ran out, {less}"


def deliver_report(report: dict[str, Any], output_format: str) -> None:
    """Print the report of a child process: as JSON, or one line per value, named by its key."""
    if output_format == "json":
        console.write(result_json(report))
    else:
        rows = [[name.replace("_", " "), _shown(value)] for name, value in flatten(report).items()]
        console.write(columns(rows))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)
