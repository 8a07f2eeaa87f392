"""Verification of an exported folder: outputs of the library that reads it, compared with the model's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from neobert.errors import EXIT_CHECK_UNKNOWN, EXIT_TRAINING_FAILED, ProjectError
from neobert.export.readers.isolated import PROJECT
from neobert.export.reference import LIMIT, Arrays, Reference, output_gaps
from neobert.printable import printable

ISOLATED = Path(__file__).parent / "readers" / "isolated.py"
LAST_LINES = 12
MISSING = re.compile(r"^ModuleNotFoundError: No module named '(\w+)")


def run_reader(reader: str, folder: Path, reference: Reference) -> tuple[Arrays, dict[str, str]]:
    """Run a reader of `neobert.export.readers` on the CPU, in a process that cannot import this project.

    Returns the reader's outputs by name, and the versions of its libraries. Raises `ProjectError` EXP010 if
    the reader fails, and export-package if a package that it needs is not installed.
    """
    with TemporaryDirectory(prefix="neobert-export-") as work_dir:
        Path(work_dir, "texts.json").write_text(json.dumps(reference.texts), encoding="utf-8")
        Path(work_dir, "token_ids.json").write_text(json.dumps(text_token_ids(reference)), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-I", str(ISOLATED), reader, str(folder.absolute()), work_dir],
            cwd=work_dir,
            env=clean_environment(work_dir),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            refuse_missing_package(done.stderr, folder)
            lines = (printable(line) for line in done.stderr.strip().splitlines()[-LAST_LINES:])
            raise ProjectError(
                "EXP010",
                f"{reader}.py cannot read the exported folder: {' | '.join(lines)}",
                "report a bug with the output above (the folder was removed)",
                folder.name,
                EXIT_TRAINING_FAILED,
            )
        with np.load(Path(work_dir, "outputs.npz"), allow_pickle=False) as found:
            outputs = dict(found)
        return outputs, json.loads(Path(work_dir, "versions.json").read_text(encoding="utf-8"))


def refuse_missing_package(output: str, folder: Path) -> None:
    """Raise `ProjectError` if a reader ended because a package that its library imports is not installed."""
    found = MISSING.search((output.strip().splitlines() or [""])[-1])
    if found is not None and found[1] not in PROJECT:
        raise ProjectError(
            "export-package",
            f"the package {found[1]}, which the library of this format imports, is not installed",
            f"pip install {found[1]}, then export again (the folder was removed)",
            folder.name,
            EXIT_CHECK_UNKNOWN,
        )


def text_token_ids(reference: Reference) -> list[list[int]]:
    """Return the token ids of each reference text, without padding."""
    rows = zip(reference.outputs["input_ids"], reference.outputs["attention_mask"], strict=True)
    return [ids[mask.astype(bool)].tolist() for ids, mask in rows]


def clean_environment(work_dir: str) -> dict[str, str]:
    """Return the environment of a reader: no Hub access, no GPU, no variables of this project or Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NEOBERT_", "PYTHON"))}
    return kept | {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_MODULES_CACHE": str(Path(work_dir, "modules")),
        "TOKENIZERS_PARALLELISM": "false",
    }


def compare_outputs(expected: Arrays, actual: Arrays, folder: Path) -> dict[str, float]:
    """Return the difference of each output. Raises `ProjectError` EXP006 if one exceeds `LIMIT`."""
    gaps = output_gaps(expected, actual)
    beyond = {name: gap for name, gap in gaps.items() if not gap <= LIMIT}
    if beyond:
        raise ProjectError(
            "EXP006",
            f"the folder's outputs differ from the model's: {_format_gaps(beyond)} (limit {LIMIT:g})",
            "report a bug with the output above (the folder was removed)",
            folder.name,
            EXIT_TRAINING_FAILED,
        )
    return gaps


def _format_gaps(gaps: Mapping[str, float]) -> str:
    return ", ".join(f"{name} by {gap:.3g}" for name, gap in gaps.items())
