"""Write exported folders, each verified before it gets its name."""

from __future__ import annotations

import json
import shutil
import sys
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
from neobert.export.source import Source, open_source
from neobert.export.verify import compare, read_elsewhere
from neobert.export_formats import FORMATS

CONVERSION = "conversion.json"
SCHEMA_VERSION = 1


def export(
    folders: Sequence[Path], formats: Sequence[str], output: Path, pooling: str | None
) -> dict[str, Any]:
    """Export the mean of checkpoint folders in each format to OUTPUT/FORMAT; return what was compared.

    Raises `ProjectError`: before anything is written EXP011 where the model cannot have a format, later
    EXP006 and EXP010 where a written folder does not give what the model gives, and EXP012 where it cannot be
    written; it is then removed.
    """
    source = open_source(folders, pooling)
    writers = {name: writer_of(name) for name in formats}
    refuse_unsuitable(source, writers)
    reference = make_reference(source)
    output.mkdir(parents=True, exist_ok=True)
    return {name: export_one(name, writers[name], source, reference, output) for name in formats}


def writer_of(name: str) -> Writer:
    """Import the writer of a format."""
    writer: Writer = import_module(f"neobert.export.formats.{FORMATS[name].module}").WRITER
    return writer


def refuse_unsuitable(source: Source, writers: dict[str, Writer]) -> None:
    """Raise `ProjectError` EXP011 with the reason of each format that this model cannot have."""
    reasons = {name: writer.refusal(source) for name, writer in writers.items()}
    refused = {name: reason for name, reason in reasons.items() if reason}
    if refused:
        others = ",".join(name for name in writers if name not in refused)
        raise ProjectError(
            "EXP011",
            "; ".join(f"{name}: {reason}" for name, reason in refused.items()),
            f"leave it out: --to {others}" if others else "choose another format: --to hf",
            "--to",
            EXIT_CHECK_FAILED,
        )


def export_one(
    name: str, writer: Writer, source: Source, reference: Reference, output: Path
) -> dict[str, Any]:
    """Write a folder under a temporary name, read it back with its consumer's library, then rename it."""
    print(f"{name}: writing and reading back", file=sys.stderr, flush=True)
    partial, folder = output / f".tmp-{name}", output / name
    shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
    try:
        partial.mkdir()
        stated = writer.write(source, partial)
        found, versions = read_elsewhere(writer.reader, partial, reference)
        gaps = compare(writer.expected(source, reference), found, folder)
        report = describe(name, source, stated, gaps, versions)
        (partial / CONVERSION).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        partial.rename(folder)
    except (OSError, SafetensorError) as error:
        raise ProjectError(
            "EXP012", f"cannot be written: {error}", "make room or choose another --output", str(folder)
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return {"folder": str(folder), **report}


def describe(
    name: str, source: Source, stated: dict[str, Any], gaps: dict[str, float], versions: dict[str, str]
) -> dict[str, Any]:
    """Return the content of conversion.json."""
    mean = f" mean of {len(source.origin)} checkpoints" if len(source.origin) > 1 else ""
    return {
        "schema_version": SCHEMA_VERSION,
        "format": name,
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": source.origin,
        "weights": f"float32{mean}",
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
