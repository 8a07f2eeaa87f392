"""Result of `validate-gpu` as text: verdict, measurements per attention path and GPU, findings, checks."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.report.formats.text import VERDICT_COLOUR, finding_text
from launcher.report.report import Report
from launcher.terminal.console import paint
from launcher.terminal.table import columns
from neobert.plurals import counted
from neobert.printable import printable
from validators.facts import Facts
from validators.facts_numerics import (
    DeviceFacts,
    IsolationFacts,
    NumericsFacts,
    ParityFacts,
    PathFacts,
    RepeatFacts,
)
from validators.facts_rehearsal import AnswerFacts
from validators.numerics_faults import count_killed

HEAD = ["path", "ran", "leaks", "cross grad", "error forward", "backward", "repeats", "mutants"]
NONE = "-"


def validation_text(report: Report, facts: Facts, *, verbose: bool) -> str:
    """Format the result of `validate-gpu`; with `verbose`, including the unavailable paths."""
    parts = [
        f"{paint(report.verdict.upper(), VERDICT_COLOUR[report.verdict], 'bold')} (exit {report.exit_code})"
    ]
    if facts.numerics is not None:
        parts.append(_numerics(facts.numerics, verbose=verbose))
    if facts.devices:
        parts.append(columns([_device(device) for device in facts.devices], indent="  "))
    parts += [finding_text(finding) for finding in report.findings]
    parts.append(columns([[c.id, str(c.status), c.name, c.message] for c in report.checks], indent="  "))
    if facts.numerics is not None and facts.numerics.paths:
        parts.append("mutants killed {}/{}".format(*count_killed(facts.numerics)))
    return "\n\n".join(parts)


def _numerics(numerics: NumericsFacts, *, verbose: bool) -> str:
    lengths = numerics.segment_lengths
    segments = f"{counted(len(lengths), 'segment')} of {min(lengths):,} to {max(lengths):,}"
    head = printable(f"{numerics.device}, {numerics.dtype}: {numerics.num_tokens:,} tokens, {segments}")
    rows = [HEAD, *(_path(path) for path in numerics.paths)]
    if numerics.attention:
        rows = [["test", "kernel", "result"]]
        rows += [[_test(each), numerics.attention, _value(each.value)] for each in numerics.answers]
    notes = [printable(f"  not available: {name}: {reason}") for name, reason in numerics.unavailable.items()]
    return "\n".join([head, columns(rows, indent="  "), *(notes if verbose else ())])


def _test(answer: AnswerFacts) -> str:
    return answer.subject if answer.kind in ("exact", "close") else answer.kind


def _value(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"


def _path(path: PathFacts) -> list[str]:
    probes = path.probes
    return [
        path.label,
        path.dispatched or NONE,
        *_isolation(probes.isolation),
        *_parity(probes.parity),
        _repeats(probes.repeats),
        str(len(path.mutants)),
    ]


def _repeats(repeats: RepeatFacts | None) -> str:
    if repeats is None:
        return NONE
    return f"within {repeats.gradient_moved:.1e}" if repeats.tensors_moved else "exactly"


def _isolation(isolation: IsolationFacts | None) -> Iterator[str]:
    if isolation is None:
        yield from (NONE, NONE)
    else:
        yield f"{isolation.leaked_tokens:,}"
        yield f"{isolation.largest_cross_gradient:.2g}"


def _parity(parity: ParityFacts | None) -> Iterator[str]:
    if parity is None:
        yield from (NONE, NONE)
        return
    forward = parity.forward_max_ratio
    yield NONE if forward is None else f"{forward:.2f}x"
    yield f"{parity.backward_max_ratio:.2f}x"


def _device(device: DeviceFacts) -> list[str]:
    return [
        f"GPU {device.index} ({device.name})",
        f"{device.gemm_flops / 1e12:.0f} TFLOP/s" + _burst(device),
        f"{device.copy_bytes_per_s / 1e12:.2f} TB/s in its memory",
        f"{device.host_bytes_per_s / 1e9:.1f}e9 bytes/s from the host",
        f"{device.answers - device.wrong_answers}/{device.answers} known products correct",
    ]


def _burst(device: DeviceFacts) -> str:
    return "" if device.burst_flops is None else f", {device.burst_flops / 1e12:.0f} in a burst"
