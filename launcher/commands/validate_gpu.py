"""`validate-gpu`: check the numerics of a training step; injected faults test the probes themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.commands.selection import Selection, hide_gpus_from_cpu_run, require_working_directory
from launcher.io.files import require_writable, write_text
from launcher.probes.collect import collect
from launcher.probes.gpus import NONE_VISIBLE, probe_gpu_health, probe_gpus
from launcher.probes.probe import IncompleteError, Probe, Subject, TimedOutError, UnsupportedError
from launcher.probes.ranks import ranks_probe
from launcher.probes.software import probe_software
from launcher.probes.trials import devices_probe, numerics_probe
from launcher.report.formats.text import VERDICT_COLOUR, finding_text
from launcher.report.report import Report, run_report
from launcher.rundir.directory import run_directory
from launcher.terminal import console
from launcher.terminal.activity import activity, announce
from launcher.terminal.console import paint
from launcher.terminal.table import format_columns
from launcher.terminal.values import result_json
from neobert.errors import EXIT_CHECK_UNKNOWN, ProjectError
from neobert.families.table import initial_weights
from neobert.plurals import counted
from neobert.printable import printable
from profiles.registry import Profile, ResolvedRun, list_profiles, load_profile, resolve_run
from validators.core import judge
from validators.facts import Facts
from validators.facts_gpu import GpuFacts
from validators.facts_io import facts_to_json
from validators.facts_numerics import (
    DeviceFacts,
    IsolationFacts,
    NumericsFacts,
    ParityFacts,
    PathFacts,
    RepeatFacts,
)
from validators.facts_rehearsal import AnswerFacts
from validators.finding import Level
from validators.numerics_faults import count_detected_faults
from validators.planning import plan_run
from validators.rules.gpu import mismatches

CODES = ("ATT001", "GPU005", "GPU006", "GPU007", "NUM001", "NUM002", "NUM003", "NUM004")

ANY_GPU = "gpu-smoke"
ANY_KERNELS = ("model.attn_backend=auto", "model.kernel_backend=auto")

HEAD = ["path", "ran", "leaks", "cross grad", "error forward", "backward", "repeats", "mutants"]
NONE = "-"


@dataclass(frozen=True, slots=True)
class ValidationRequest:
    """Arguments of `validate-gpu`; `full` measures all installed attention backends."""

    selection: Selection
    full: bool
    save_facts: Path | None
    strict: bool
    verbose: bool


def run(request: ValidationRequest, output_format: str) -> int:
    """Measure the numerics on this machine, and check and print the results; return the exit code."""
    run_here = choose_run(request.selection)
    resolved = run_here.resolved
    hide_gpus_from_cpu_run(resolved)
    if resolved.device == "cuda":
        visible_gpus()
    require_writable(request.save_facts)
    if run_here.note and output_format == "text":
        console.write(printable(run_here.note))
    facts = measure(resolved, all_backends=request.full)
    report = judge_numbers(resolved, facts, strict=request.strict)
    if request.save_facts:
        write_text(request.save_facts, facts_to_json(facts))
    if output_format == "text":
        console.write(_validation_text(report, facts, verbose=request.verbose))
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
        raise _no_gpu_error(str(error)) from None
    except (IncompleteError, TimedOutError) as error:
        raise _no_gpu_error(f"the NVIDIA driver does not respond ({error})") from None
    if not gpus:
        raise _no_gpu_error(NONE_VISIBLE)
    return gpus


def _no_gpu_error(reason: str) -> ProjectError:
    return ProjectError("no-gpu", f"{reason}: nothing was validated", exit_code=EXIT_CHECK_UNKNOWN)


def as_json(report: Report, facts: Facts) -> dict[str, Any]:
    """Return the report with its evidence: injected and detected faults, and all recorded facts."""
    killed, planted = count_detected_faults(facts.numerics) if facts.numerics else (0, 0)
    return report.as_json() | {
        "mutants": {"killed": killed, "planted": planted},
        "facts": json.loads(facts_to_json(facts)),
    }


def measure(resolved: ResolvedRun, *, all_backends: bool) -> Facts:
    """Probe the machine for this run. A run that requires a GPU is never probed on a CPU instead.

    Args:
        all_backends: measure all installed attention backends, not only the backend of the run.
    """
    needs_gpu = resolved.device == "cuda"
    probes = [
        Probe("software", probe_software),
        numerics_probe(needs_gpu=needs_gpu, all_backends=all_backends),
    ]
    if needs_gpu:
        probes += [
            Probe("gpus", lambda _: probe_gpus()),
            Probe("gpu_health", lambda _: probe_gpu_health()),
            devices_probe(),
        ]
    if has_several_ranks(resolved):
        probes.append(ranks_probe())
    with activity("checking this machine"):
        return collect(probes, Subject(resolved.config, run_directory(resolved), Path.cwd()), announce)


def judge_numbers(resolved: ResolvedRun, facts: Facts, *, strict: bool) -> Report:
    """Check the measurements against the rules of this command only; preflight runs the other rules."""
    levels = (Level.GPU, Level.DISTRIBUTED) if has_several_ranks(resolved) else (Level.GPU,)
    findings, checks = judge(resolved, plan_run(resolved), facts, levels)
    ours = {*CODES, *(check.id for check in checks if check.level is Level.DISTRIBUTED)}
    return run_report(
        resolved,
        (finding for finding in findings if finding.code in ours),
        (check for check in checks if check.id in ours),
        strict=strict,
    )


def has_several_ranks(resolved: ResolvedRun) -> bool:
    """Return whether the run has several ranks on this node."""
    return resolved.config.distributed.nproc_per_node > 1


@dataclass(frozen=True, slots=True)
class GpuRun:
    """Resolved run to validate; `note` names the GPU and the chosen profile, empty if the run was given."""

    resolved: ResolvedRun
    note: str


def run_for_gpus(gpus: Sequence[GpuFacts], overrides: Sequence[str]) -> GpuRun:
    """Resolve a profile that requires these GPUs (at least one), or else `ANY_GPU`.

    Production profiles are preferred, then profiles that require more GPUs.
    """
    profiles = [profile for profile in map(load_profile, list_profiles()) if _is_candidate_profile(profile)]
    fitting = [profile for profile in profiles if _matches_gpus(profile, gpus)]
    if not fitting:
        note = f"{gpus[0].name}: no profile requires this GPU; validating {ANY_GPU}"
        return GpuRun(resolve_run(ANY_GPU, (), [*ANY_KERNELS, *overrides]), note)
    chosen = max(fitting, key=lambda profile: (profile.kind == "production", profile.requires.num_gpus))
    label = counted(chosen.requires.num_gpus, gpus[0].name)
    return GpuRun(resolve_run(chosen.name, (), overrides), f"{label}: profile {chosen.name}")


def _is_candidate_profile(profile: Profile) -> bool:
    """Return whether a profile requires a named GPU, runs on one node and starts from random weights."""
    names_gpu = profile.requires.device == "cuda" and profile.requires.gpu is not None
    continues = initial_weights(profile.config) is not None
    return names_gpu and not continues and profile.config.distributed.nnodes == 1


def _matches_gpus(profile: Profile, gpus: Sequence[GpuFacts]) -> bool:
    needed = profile.requires.num_gpus
    faults = [fault for gpu in gpus[:needed] for fault in mismatches(gpu, profile.requires)]
    return needed <= len(gpus) and not faults


def _validation_text(report: Report, facts: Facts, *, verbose: bool) -> str:
    """Format the result of `validate-gpu`; with `verbose`, including the unavailable paths."""
    parts = [
        f"{paint(report.verdict.upper(), VERDICT_COLOUR[report.verdict], 'bold')} (exit {report.exit_code})"
    ]
    if facts.numerics is not None:
        parts.append(_numerics_text(facts.numerics, verbose=verbose))
    if facts.devices:
        parts.append(format_columns([_device_row(device) for device in facts.devices], indent="  "))
    parts += [finding_text(finding) for finding in report.findings]
    parts.append(
        format_columns([[c.id, str(c.status), c.name, c.message] for c in report.checks], indent="  ")
    )
    if facts.numerics is not None and facts.numerics.paths:
        parts.append("mutants killed {}/{}".format(*count_detected_faults(facts.numerics)))
    return "\n\n".join(parts)


def _numerics_text(numerics: NumericsFacts, *, verbose: bool) -> str:
    lengths = numerics.segment_lengths
    segments = f"{counted(len(lengths), 'segment')} of {min(lengths):,} to {max(lengths):,}"
    head = printable(f"{numerics.device}, {numerics.dtype}: {numerics.num_tokens:,} tokens, {segments}")
    rows = [HEAD, *(_path_row(path) for path in numerics.paths)]
    if numerics.attention:
        rows = [["test", "kernel", "result"]]
        rows += [[_test_text(each), numerics.attention, _value_text(each.value)] for each in numerics.answers]
    notes = [printable(f"  not available: {name}: {reason}") for name, reason in numerics.unavailable.items()]
    return "\n".join([head, format_columns(rows, indent="  "), *(notes if verbose else ())])


def _test_text(test: AnswerFacts) -> str:
    return test.subject if test.kind in ("exact", "close") else test.kind


def _value_text(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"


def _path_row(path: PathFacts) -> list[str]:
    probes = path.probes
    return [
        path.label,
        path.dispatched or NONE,
        *_isolation_values(probes.isolation),
        *_parity_values(probes.parity),
        _repeats_text(probes.repeats),
        str(len(path.mutants)),
    ]


def _repeats_text(repeats: RepeatFacts | None) -> str:
    if repeats is None:
        return NONE
    return f"within {repeats.gradient_moved:.1e}" if repeats.tensors_moved else "exactly"


def _isolation_values(isolation: IsolationFacts | None) -> Iterator[str]:
    if isolation is None:
        yield from (NONE, NONE)
    else:
        yield f"{isolation.leaked_tokens:,}"
        yield f"{isolation.largest_cross_gradient:.2g}"


def _parity_values(parity: ParityFacts | None) -> Iterator[str]:
    if parity is None:
        yield from (NONE, NONE)
        return
    forward = parity.forward_max_ratio
    yield NONE if forward is None else f"{forward:.2f}x"
    yield f"{parity.backward_max_ratio:.2f}x"


def _device_row(device: DeviceFacts) -> list[str]:
    return [
        f"GPU {device.index} ({device.name})",
        f"{device.gemm_flops / 1e12:.0f} TFLOP/s" + _burst_text(device),
        f"{device.copy_bytes_per_s / 1e12:.2f} TB/s in its memory",
        f"{device.host_bytes_per_s / 1e9:.1f}e9 bytes/s from the host",
        f"{device.answers - device.wrong_answers}/{device.answers} known products correct",
    ]


def _burst_text(device: DeviceFacts) -> str:
    return "" if device.burst_flops is None else f", {device.burst_flops / 1e12:.0f} in a burst"
