"""`evaluate passkey`, which runs in a child process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.commands.evaluation import evaluate_in_child, output_folder
from launcher.terminal import console
from launcher.terminal.table import columns
from neobert.errors import EXIT_CHECK_FAILED, EXIT_OK, EXIT_USAGE, ProjectError
from neobert.runfiles.evaluation_report import score_text
from neobert.runfiles.model_folder import require_model_folder

MODULE, RESULT = "neobert.evaluation.passkey", "passkey.json"
OPTION = "--lengths"
LONGEST = 2**20
NUMBER = re.compile("([0-9]{1,9})(k?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Model:
    """Model to test; None selects the default compute type and device."""

    folder: Path
    dtype: str | None
    device: str | None


@dataclass(frozen=True, slots=True)
class Test:
    """Lengths in tokens, documents of each length and depth, and their seed."""

    lengths: list[int]
    trials: int
    seed: int


def run(model: Model, test: Test, output: Path | None, least: float | None, output_format: str) -> int:
    """Test the model, and print the accuracy by length and depth.

    Args:
        least: accuracy in percent that every length needs; below, the exit code is that of a failed check.
    """
    require_model_folder(model.folder)
    content = {**asdict(test), **asdict(model), "folder": str(model.folder.absolute())}
    with output_folder(output) as place:
        report = evaluate_in_child(MODULE, content, place / RESULT, _table, output_format)
    worst, accuracy = min(report["accuracy"].items(), key=lambda each: each[1])
    if least is None or 100 * accuracy >= least:
        return EXIT_OK
    console.log(f"fail: accuracy is {accuracy:.1%} at {int(worst):,} tokens (least {least:g}%)")
    return EXIT_CHECK_FAILED


def lengths_of(text: str) -> list[int]:
    """Return the lengths of `512,1k,4k` in tokens; 1k is 1,024. Raises `ProjectError`."""
    return sorted({_length_of(part.strip()) for part in text.split(",")})


def _length_of(part: str) -> int:
    number = NUMBER.fullmatch(part)
    tokens = int(number[1]) * (1024 if number[2] else 1) if number else 0
    if not 0 < tokens <= LONGEST:
        message = f"{OPTION} has {part[:20] or 'an empty part'}, which is not a number of tokens"
        raise ProjectError("usage", message, f"write {OPTION} 512,1k,4k", OPTION, EXIT_USAGE)
    return tokens


def _table(report: Mapping[str, Any]) -> str:
    depths = list(next(iter(report["by_depth"].values())))
    rows = [["tokens", "accuracy", *(f"depth {depth}" for depth in depths)]]
    for length, by_depth in report["by_depth"].items():
        scores = (report["accuracy"][length], *by_depth.values())
        rows.append([f"{int(length):,}", *map(score_text, scores)])
    return f"{columns(rows)}\nin percent; chance is {score_text(report['chance'])}"
