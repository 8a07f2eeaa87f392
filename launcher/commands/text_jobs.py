"""`encode` and `predict`: embeddings and predictions of texts, computed in a child process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from launcher.commands.data import deliver_report
from launcher.commands.selection import require_working_directory
from launcher.commands.texts_argument import texts_and_output
from launcher.io.files import expanded, make_folder
from launcher.process.json_child import report_of
from launcher.terminal import console
from launcher.terminal.table import columns
from neobert.encoding.request import Request as EncodingRequest
from neobert.errors import EXIT_INTERRUPTED, EXIT_OK, ProjectError
from neobert.plurals import counted, percent
from neobert.prediction.request import Request as PredictionRequest
from neobert.printable import printable
from neobert.runfiles.model_folder import require_model_folder

MODULES = {EncodingRequest: "neobert.encoding", PredictionRequest: "neobert.prediction"}
LARGE_SHARE_LOST = 0.1
STOPPED, CONTINUED = "Ctrl-C: stopped", "run the same command again to continue with the remaining texts"
HINT = "see the output above; if memory ran out, lower --max-length. The same command continues the job"


def run(request: EncodingRequest | PredictionRequest, output_format: str) -> int:
    """Run the job; print its report, or without an output file what it wrote."""
    require_working_directory()
    folder = expanded(request.folder)
    require_model_folder(folder)
    if isinstance(request, EncodingRequest) and request.is_index:
        make_folder(expanded(request.output).parent)
    with texts_and_output(Path(request.texts), Path(request.output) if request.output else None) as places:
        texts, output = places
        content = replace(request, folder=str(folder.absolute()), texts=texts, output=output)
        report = _report_of(MODULES[type(request)], asdict(content))
    if request.output:
        classes = report.pop("classes", {}) if output_format == "text" else {}
        deliver_report(report, output_format)
        log_classes(classes)
    warn_of_lost_text(report)
    return EXIT_OK


def _report_of(module: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Run a job that the same command continues after Ctrl-C, and return its report."""
    try:
        return report_of(module, content, doing="loading the model", hint=HINT)
    except KeyboardInterrupt:
        raise ProjectError("interrupted", STOPPED, CONTINUED, exit_code=EXIT_INTERRUPTED) from None


def log_classes(classes: Mapping[str, Mapping[str, Any]]) -> None:
    """Print scores by class, and what the texts of each class are predicted as."""
    if not classes:
        return
    rows = [["class", "texts", "precision", "recall", "F1", "predicted as"]]
    for name, each in classes.items():
        shares = [f"{each[key]:.3f}" for key in ("precision", "recall", "f1")]
        predicted = ", ".join(
            f"{count:,} {printable(other)}" for other, count in each["predicted_as"].items()
        )
        rows.append([printable(name), f"{each['texts']:,}", *shares, predicted])
    console.write(f"\n{columns(rows)}")


def warn_of_lost_text(report: Mapping[str, Any]) -> None:
    """Warn if a large share of all tokens was cut off."""
    truncated, lost = report["truncated"], report["tokens_lost"]
    share = lost / max(1, lost + report["tokens"])
    if share > LARGE_SHARE_LOST:
        console.log(
            f"warning: {truncated:,} of {counted(report['texts'], 'text')} "
            f"{'exceeds' if truncated == 1 else 'exceed'} {report['max_length']:,} tokens; "
            f"{percent(share)} of all tokens were cut off"
        )
        console.log("  = hint: split long texts into passages, one per line or row")
