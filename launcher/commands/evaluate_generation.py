"""`evaluate generation`: greedy continuations of prompts, in a child process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.commands.evaluation import evaluate_in_child, output_folder
from launcher.io.files import expanded, require_present
from neobert.errors import EXIT_OK
from neobert.plurals import counted, percent
from neobert.printable import printable
from neobert.runfiles.model_folder import require_model_folder

MODULE = "neobert.evaluation.generation"
SHOWN = 3


def run(
    folder: Path, prompts: Path, output: Path | None, max_tokens: int, dtype: str | None, device: str | None,
    output_format: str,
) -> int:  # fmt: skip
    """Continue the prompts and print the continuations; with `output`, save them and print the first ones."""
    folder = expanded(folder)
    require_model_folder(folder)
    require_present(prompts, "PROMPTS")
    request = {
        "folder": str(folder.absolute()), "prompts": str(prompts.absolute()), "max_tokens": max_tokens,
        "dtype": dtype, "device": device,
    }  # fmt: skip
    with output_folder(output) as place:
        file = place / "generation.json"
        saved = None if output is None else file
        evaluate_in_child(MODULE, request, file, lambda report: _shown(report, saved), output_format)
    return EXIT_OK


def _shown(report: Mapping[str, Any], saved: Path | None) -> str:
    lines = []
    for sample in report["samples"][: SHOWN if saved else None]:
        prompt = sample.get("prompt") or sample["messages"][-1]["content"]
        lines += [f"> {printable(prompt, keep=_BREAKS)}", printable(sample["continuation"], keep=_BREAKS), ""]
    summary = report["summary"]
    lines.append(
        f"{counted(summary['prompts'], 'prompt')}, {summary['mean_tokens']:,.1f} tokens on average, "
        f"{percent(summary['share_stopped'])} ended by themselves{f'; all: {saved}' if saved else ''}"
    )
    return "\n".join(lines)


_BREAKS = "\n\t"
