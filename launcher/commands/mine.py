"""`data mine`: hard negatives of pairs, found in a child process."""

from __future__ import annotations

from dataclasses import asdict, replace

from launcher.commands.data import deliver_report
from launcher.commands.selection import require_working_directory
from launcher.io.files import expanded, require_present, require_writable
from launcher.process.json_child import report_of
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.mining.request import Request
from neobert.runfiles.model_folder import require_model_folder

MODULE = "neobert.mining"
JSONL = ".jsonl"
HINT = "see the output above; if memory ran out, mine a part of the pairs"


def run(request: Request, output_format: str) -> int:
    """Mine negatives, and print the counts."""
    require_working_directory()
    folder, pairs = expanded(request.folder).absolute(), expanded(request.pairs).absolute()
    output = expanded(request.output).absolute()
    require_model_folder(folder)
    require_present(pairs, "PAIRS")
    if output.suffix != JSONL:
        message, hint = (
            f"--output {output.name} does not end in {JSONL}",
            f"choose a name that ends in {JSONL}",
        )
        raise ProjectError("mine-output", message, hint, str(output), EXIT_USAGE)
    require_writable(output)
    corpus = None if request.corpus is None else expanded(request.corpus).absolute()
    if corpus is not None:
        require_present(corpus, "--corpus")
    content = replace(
        request,
        folder=str(folder),
        pairs=str(pairs),
        output=str(output),
        corpus=None if corpus is None else str(corpus),
    )
    deliver_report(report_of(MODULE, asdict(content), doing="loading the model", hint=HINT), output_format)
    return EXIT_OK
