"""`validate-gpu`: check the numerics of a training step; injected faults test the probes themselves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.commands.selection import Selection, keep_to_its_device, require_working_directory
from launcher.io.files import absolute, require_writable, write_text
from launcher.preflight.detected_gpu_run import GpuRun, run_for_gpus
from launcher.probes.collect import collect
from launcher.probes.gpus import NONE_VISIBLE, probe_gpu_health, probe_gpus
from launcher.probes.probe import IncompleteError, Probe, Subject, TimedOutError, UnsupportedError
from launcher.probes.ranks import ranks_probe
from launcher.probes.software import probe_software
from launcher.probes.trials import devices_probe, numerics_probe
from launcher.report.report import Report, report_of_run
from launcher.report.validation_view import validation_text
from launcher.terminal import console
from launcher.terminal.activity import activity, announce
from launcher.terminal.values import result_json
from neobert.errors import EXIT_CHECK_UNKNOWN, ProjectError
from neobert.printable import printable
from profiles.registry import ResolvedRun
from validators.core import judge
from validators.facts import Facts
from validators.facts_gpu import GpuFacts
from validators.facts_io import facts_to_json
from validators.finding import Level
from validators.numerics_faults import count_killed
from validators.planning import plan_run

CODES = ("ATT001", "GPU005", "GPU006", "GPU007", "NUM001", "NUM002", "NUM003", "NUM004")


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of `validate-gpu`. `full`: measure all installed attention backends."""

    selection: Selection
    full: bool
    save_facts: Path | None
    strict: bool
    verbose: bool


def run(request: Request, output_format: str) -> int:
    """Measure the numerics on this machine, check and print the results; return the exit code."""
    run_here = choose_run(request.selection)
    resolved = run_here.resolved
    keep_to_its_device(resolved)
    if resolved.device == "cuda":
        visible_gpus()
    require_writable(request.save_facts)
    if run_here.note and output_format == "text":
        console.write(printable(run_here.note))
    facts = measure(resolved, every=request.full)
    report = judge_numbers(resolved, facts, strict=request.strict)
    if request.save_facts:
        write_text(request.save_facts, facts_to_json(facts))
    if output_format == "text":
        console.write(validation_text(report, facts, verbose=request.verbose))
    else:
        console.write(result_json({"note": run_here.note} | as_json(report, facts)))
    return report.exit_code


def choose_run(selection: Selection) -> GpuRun:
    """Resolve the given run, or the default run of the visible GPUs if no profile or run file is given."""
    if selection.profile is None and not selection.files:
        require_working_directory()
        return run_for_gpus(visible_gpus(), selection.overrides)
    return GpuRun(selection.require(), note="")


def visible_gpus() -> tuple[GpuFacts, ...]:
    """Probe the visible GPUs. Raises ProjectError (exit 3) if there is none or the driver hangs."""
    try:
        gpus = probe_gpus()
    except UnsupportedError as error:
        raise _nothing_to_validate(str(error)) from None
    except (IncompleteError, TimedOutError) as error:
        raise _nothing_to_validate(f"the NVIDIA driver does not respond ({error})") from None
    if not gpus:
        raise _nothing_to_validate(NONE_VISIBLE)
    return gpus


def _nothing_to_validate(reason: str) -> ProjectError:
    return ProjectError("no-gpu", f"{reason}: nothing was validated", exit_code=EXIT_CHECK_UNKNOWN)


def as_json(report: Report, facts: Facts) -> dict[str, Any]:
    """Return the report with its evidence: injected and detected faults, and all recorded facts."""
    killed, planted = count_killed(facts.numerics) if facts.numerics else (0, 0)
    return report.as_json() | {
        "mutants": {"killed": killed, "planted": planted},
        "facts": json.loads(facts_to_json(facts)),
    }


def measure(resolved: ResolvedRun, *, every: bool) -> Facts:
    """Probe the machine for this run. A run that requires a GPU is never probed on a CPU instead.

    Args:
        every: measure all installed attention backends, not only the backend of the run.
    """
    needs_gpu = resolved.device == "cuda"
    probes = [Probe("software", probe_software), numerics_probe(needs_gpu=needs_gpu, every=every)]
    if needs_gpu:
        probes += [
            Probe("gpus", lambda _: probe_gpus()),
            Probe("gpu_health", lambda _: probe_gpu_health()),
            devices_probe(),
        ]
    if has_ranks(resolved):
        probes.append(ranks_probe())
    output_dir = absolute(resolved.config.trainer.output_dir, "trainer.output_dir")
    with activity("checking this machine"):
        return collect(probes, Subject(resolved.config, output_dir, Path.cwd()), announce)


def judge_numbers(resolved: ResolvedRun, facts: Facts, *, strict: bool) -> Report:
    """Check the measurements against the rules of this command only; preflight runs the other rules."""
    levels = (Level.GPU, Level.DISTRIBUTED) if has_ranks(resolved) else (Level.GPU,)
    findings, checks = judge(resolved, plan_run(resolved), facts, levels)
    ours = {*CODES, *(check.id for check in checks if check.level is Level.DISTRIBUTED)}
    return report_of_run(
        resolved,
        (finding for finding in findings if finding.code in ours),
        (check for check in checks if check.id in ours),
        strict=strict,
    )


def has_ranks(resolved: ResolvedRun) -> bool:
    """Return whether the run has several ranks on this node."""
    return resolved.config.distributed.nproc_per_node > 1
