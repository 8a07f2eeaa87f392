"""Export of a model to one folder per format, each verified before it gets its final name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from neobert import __version__
from neobert.errors import EXIT_CHECK_FAILED, ProjectError
from neobert.export.formats.writer import Writer
from neobert.export.reference import LIMIT, Reference, make_reference
from neobert.export.results import add_sections, evaluation_section, read_reports, training_section
from neobert.export.source import Source, open_source
from neobert.export.verify import compare_outputs, run_reader
from neobert.export_formats import CONVERSION, FORMATS
from neobert.file_modes import share_like_folder
from neobert.folder_lock import FolderInUseError, lock_folder
from neobert.progress import LOG

SCHEMA_VERSION = 1


def export(
    folders: Sequence[Path],
    formats: Sequence[str],
    output: Path,
    pooling: str | None,
    results: Sequence[Path] = (),
    dtype: str = "float32",
) -> dict[str, Any]:
    """Export the mean of checkpoint folders in each format to OUTPUT/FORMAT; return a report by format.

    Args:
        pooling: "avg", "max" or "cls", which replaces the model's pooling; None keeps it.
        results: reports of `evaluate` on these weights, for the model cards.
        dtype: name of the torch dtype of the weights to write, which format hf supports.

    Raises `ProjectError` EXP011, before anything is written, if a format does not support the model; EXP010
    if a written folder cannot be read, EXP006 if its outputs differ from the model's, and EXP012 if it cannot
    be written. A failed folder is removed.
    """
    source = open_source(folders, pooling, getattr(torch, dtype))
    writers = {name: load_writer(name) for name in formats}
    refuse_unsuitable(source, writers)
    card = card_sections(source, results)
    reference = make_reference(source)
    try:
        with lock_folder(output):
            return {
                name: export_one(name, writers[name], source, reference, output, card) for name in formats
            }
    except FolderInUseError:
        hint = "wait until that process ends, or choose another --output"
        raise ProjectError(
            "EXP012", "another process is exporting to this folder", hint, str(output)
        ) from None


def card_sections(source: Source, results: Sequence[Path]) -> tuple[str, str]:
    """Return the training and evaluation sections of the model card.

    Raises `ProjectError` if a file in `results` is not a report on these weights.
    """
    weights = " ".join(digest for origin in source.origin for digest in origin["weights_sha256"].values())
    return training_section(source.origin), evaluation_section(read_reports(results, weights))


def load_writer(name: str) -> Writer:
    """Import the module of a format; return its writer."""
    writer: Writer = import_module(f"neobert.export.formats.{FORMATS[name].module}").WRITER
    return writer


def refuse_unsuitable(source: Source, writers: dict[str, Writer]) -> None:
    """Raise `ProjectError` EXP011, with a reason per format, if formats do not support this model."""
    reasons = {name: writer.refusal(source) for name, writer in writers.items()}
    refused = {name: reason for name, reason in reasons.items() if reason}
    if refused:
        others = ",".join(name for name in writers if name not in refused)
        raise ProjectError(
            "EXP011",
            "; ".join(f"{name}: {reason}" for name, reason in refused.items()),
            f"convert to other formats: --to {others}" if others else "choose another format: --to hf",
            "--to",
            EXIT_CHECK_FAILED,
        )


def export_one(
    name: str, writer: Writer, source: Source, reference: Reference, output: Path, card: Sequence[str] = ()
) -> dict[str, Any]:
    """Write a folder under a temporary name, verify it with the library that reads it, and rename it.

    Returns the content of conversion.json and the key `folder`. Raises `ProjectError` as `export` does.
    """
    LOG.info("writing and verifying format %s", name)
    partial, folder = output / f".tmp-{name}", output / name
    if folder.exists():  # written since the command began
        raise ProjectError("EXP012", "the folder already exists", "choose a new --output", str(folder))
    shutil.rmtree(partial, ignore_errors=True)  # left over from a killed export
    try:
        partial.mkdir()
        stated = writer.write(source, partial)
        add_sections(partial, *card)
        found, versions = run_reader(writer.reader, partial, reference)
        gaps = compare_outputs(writer.expected_outputs(source, reference), found, folder)
        report = conversion_record(name, source, stated, gaps, versions)
        (partial / CONVERSION).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        share_like_folder(partial)
        partial.rename(folder)
    except (OSError, SafetensorError) as error:
        raise ProjectError(
            "EXP012",
            f"the export cannot be written: {error}",
            "free disk space, or choose another --output",
            str(folder),
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return {"folder": str(folder), **report}


def conversion_record(
    name: str, source: Source, stated: dict[str, Any], gaps: dict[str, float], versions: dict[str, str]
) -> dict[str, Any]:
    """Return the content of conversion.json: format, origin, versions and largest difference by output.

    `stated` are the writer's own entries, `gaps` the differences, `versions` the reader's libraries.
    """
    mean = f" mean of {len(source.origin)} checkpoints" if len(source.origin) > 1 else ""
    return {
        "schema_version": SCHEMA_VERSION,
        "format": name,
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": source.origin,
        "weights": f"{str(source.dtype).removeprefix('torch.')}{mean}",
        **stated,
        "max_difference": gaps,
        "limit": LIMIT,
        "written_with": {
            "neobert-launch": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "read_with": versions,
    }
