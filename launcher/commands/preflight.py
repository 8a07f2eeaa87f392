"""`preflight`: checks of the run, the machine and its GPUs, from probes or from recorded facts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launcher.commands.selection import Selection, hide_gpus_from_cpu_run
from launcher.io.files import require_writable, write_text
from launcher.preflight import kept_receipts
from launcher.preflight.examination import examine, load_facts, results_folder, write_report, write_results
from launcher.preflight.hub_weights import require_downloaded
from launcher.preflight.levels import default_levels, parse_levels
from launcher.preflight.preflight_view import preflight_text
from launcher.preflight.receipts import Examination
from launcher.preflight.rehearsal_inputs import rehearsal_inputs
from launcher.report.formats import print_report
from launcher.terminal import console
from neobert.printable import printable
from validators.facts_io import facts_to_json
from validators.finding import Level


@dataclass(frozen=True, slots=True)
class PreflightRequest:
    """Arguments of `preflight`; `facts` is a file of recorded facts to check instead of this machine."""

    selection: Selection
    levels: str
    facts: Path | None
    save_facts: Path | None
    output: Path | None
    strict: bool
    verbose: bool


def run(request: PreflightRequest, output_format: str) -> int:
    """Check the run, write the results, print the report, return its exit code.

    Recorded facts yield no receipt, because this machine was not probed.
    """
    wanted = parse_levels(request.levels)
    resolved = request.selection.require()
    hide_gpus_from_cpu_run(resolved)
    levels = wanted or default_levels(resolved)
    recorded = load_facts(request.facts) if request.facts else None
    if recorded is None:
        require_downloaded(resolved.config)
    folder = results_folder(resolved, request.output)
    require_writable(request.save_facts)
    is_rehearsed = recorded is None and Level.REHEARSAL in levels
    inputs = rehearsal_inputs(resolved) if is_rehearsed else {}
    examination = examine(resolved, levels, facts=recorded, folder=folder, strict=request.strict)
    (write_report if recorded else write_results)(examination, folder)
    kept_receipts.store_receipt(examination, inputs)
    if request.save_facts:
        write_text(request.save_facts, facts_to_json(examination.facts))
    if output_format == "text":
        console.write(preflight_text(examination, verbose=request.verbose))
        console.write(
            _results_note(examination, folder)
            if recorded
            else printable(f"report, facts and receipt: {folder}")
        )
    else:
        print_report(examination.report, output_format)
    return examination.report.exit_code


def _results_note(examination: Examination, folder: Path) -> str:
    recorded = examination.facts.recorded_utc or "an unknown time"
    kept = printable(f"report: {folder}")
    return f"{kept}\nno receipt: the checks used facts recorded at {printable(recorded)}, not this machine"
