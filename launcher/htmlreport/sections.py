"""Sections of a report below its charts: preflight, config with origins, machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.htmlreport.markup import (
    STATUSES,
    finite_number,
    html_code,
    html_details,
    html_muted,
    html_status,
    html_table,
    html_text,
    mapping_or_empty,
)
from launcher.htmlreport.overview import launches_html, results_html
from launcher.htmlreport.run_record import RunRecord
from launcher.rundir.comparable_values import comparable_values
from launcher.rundir.records import Record, get_list, get_records
from launcher.terminal.values import origin_text, show_mib, show_value
from neobert.config import Origin
from neobert.plurals import counted
from neobert.runfiles.samples import Guess, MaskedText

ABSENT = "not set"
SHOWN_STATUSES = ("fail", "unknown", "warn")
MAX_EVALUATIONS = 12
"""Approximate maximum number of evaluations in the table of masked words."""
KINDS = ("override", "file", "profile")
"""Kinds of origins other than defaults, the highest precedence first."""


def details_html(run: RunRecord) -> str:
    """Return the HTML for all of a run's sections."""
    sections = {
        "Results": results_html(run),
        "Masked words": masked_words_html(run),
        "Text": texts_html(run),
        "Preflight": preflight_html(run),
        "Launches and restarts": launches_html(run),
        "Config": config_html(run),
        "Hardware and software": machine_html(run),
    }
    return "".join(f"<h2>{name}</h2>{content}" for name, content in sections.items() if content)


def masked_words_html(run: RunRecord) -> str:
    """Return the HTML table of guesses at masked words, one row per evaluation; of many, a selection.

    Returns an empty string if there are none.
    """
    evaluations = run.samples.evaluations
    every = max(1, -(-(len(evaluations) - 1) // MAX_EVALUATIONS))
    shown = [*evaluations[:-1:every], *evaluations[-1:]]
    heads = ["step", *map(_masked_text_html, run.samples.texts)]
    rows = [
        [
            f"{evaluation.step:,}",
            *(
                _guesses_html(guesses, each.word)
                for guesses, each in zip(evaluation.guesses, run.samples.texts, strict=True)
            ),
        ]
        for evaluation in shown
    ]
    filled = html_table(
        heads, rows, narrow=["step", *(html_text(f"[{each.word}]") for each in run.samples.texts)]
    )
    note = "Masked words of the evaluation text, and the guesses of the model."
    return filled and f'<p class="muted">{note}</p>{filled}'


def _masked_text_html(sample: MaskedText) -> str:
    before, word, after = map(html_text, (sample.before, sample.word, sample.after))
    return f'<span class="sample">{before} <b>[{word}]</b> {after}</span>'


def _guesses_html(guesses: Sequence[Guess], word: str) -> str:
    shown = (
        f'<span class="guess{" pass" if guess.text == word else ""}">{html_text(guess.text)} '
        f"{html_muted(f'{guess.probability:.0%}')}</span>"
        for guess in guesses
    )
    return " ".join(shown)


def texts_html(run: RunRecord) -> str:
    """Return the HTML table of local texts: files read, by format, documents, and files that are not read."""
    rows = [
        [
            html_text(each.get("source", "")),
            html_text(
                ", ".join(
                    f"{count} x {suffix}" for suffix, count in mapping_or_empty(each.get("formats")).items()
                )
            ),
            html_text("not counted" if each.get("documents") is None else each["documents"]),
            "<br>".join(map(_left_out_html, get_records(each, "left_out"))) or "-",
        ]
        for each in get_records(run.facts, "text")
    ]
    return html_table(["text", "files read", "documents", "not read"], rows)


def _left_out_html(files: Record) -> str:
    reason = f" ({files.get('example')}: {files['reason']})" if files.get("reason") else ""
    hint = html_muted(f"hint: {files['hint']}") if files.get("hint") else ""
    count = f"{files.get('num_files', '?')} x {files.get('kind', '?')}{reason}"
    return f"{html_text(count)} {hint}"


def differences_html(runs: Sequence[RunRecord]) -> str:
    """Return the HTML table of config keys in which runs differ, with each run's value and its origin."""
    configs = [comparable_values(run.config) for run in runs]
    keys = sorted(set[str]().union(*configs))
    rows = [
        [html_code(key), *(_value_and_origin_html(run, key) for run in runs)]
        for key in keys
        if any(config.get(key, ABSENT) != configs[0].get(key, ABSENT) for config in configs)
    ]
    shown = html_table(["key", *(html_text(run.name) for run in runs)], rows)
    return f"<h2>Config differences</h2>{shown or '<p>The configs are equal.</p>'}"


def preflight_html(run: RunRecord) -> str:
    """Return the HTML of the verdict, all findings with hints, and the reasons for skipped checks."""
    if "verdict" not in run.preflight:
        return "<p>This run directory has no readable preflight.json.</p>"
    checks, findings = get_records(run.preflight, "checks"), get_records(run.preflight, "findings")
    counts = {each: sum(check.get("status") == each for check in checks) for each in STATUSES}
    totals = ", ".join(f"{count} {each}" for each, count in counts.items() if count)
    codes = {finding.get("code") for finding in findings}
    rows = [_finding_cells(finding) for finding in findings]
    rows += [
        [html_status(check["status"]), _check_html(check), html_text(check.get("message", "")), ""]
        for check in checks
        if check.get("status") in SHOWN_STATUSES and check.get("id") not in codes
    ]
    skipped = [
        [_check_html(check), html_text(check.get("message", ""))]
        for check in checks
        if check.get("status") == "skip"
    ]
    shown = html_table(["", "check", "finding", "hint"], rows) or "<p>No findings.</p>"
    title = counted(len(skipped), "skipped check")
    more = html_details(title, html_table(["check", "reason"], skipped)) if skipped else ""
    return f"<p>Verdict: {html_status(run.preflight['verdict'])} ({html_text(totals)})</p>{shown}{more}"


def config_html(run: RunRecord) -> str:
    """Return HTML tables of config values and origins: values that were set, then all values, collapsed.

    Empty if the config is unknown.
    """
    rows = {
        key: [html_code(key), html_code(show_value(value)), html_muted(_origin_text(run, key))]
        for key, value in sorted(run.config.items())
    }
    kinds = {key: mapping_or_empty(run.provenance.get(key)).get("kind") for key in rows}
    chosen = [row for kind in KINDS for key, row in rows.items() if kinds[key] == kind]
    heads = ["key", "value", "origin"]
    everything = html_details(f"All {len(rows)} keys, with defaults", html_table(heads, rows.values()))
    return html_table(heads, chosen) + everything if rows else ""


def machine_html(run: RunRecord) -> str:
    """Return the HTML table of host, GPUs, code version and packages of the newest launch."""
    return html_table(["", ""], ([html_text(name), html_text(value)] for name, value in _machine_rows(run)))


def _machine_rows(run: RunRecord) -> Iterator[tuple[str, Any]]:
    facts, launch = run.facts, run.last_launch
    host, software = mapping_or_empty(facts.get("host")), mapping_or_empty(facts.get("software"))
    if host:
        memory = show_mib(finite_number(host.get("ram_total_mib")))
        yield "host", f"{host.get('hostname', '?')}: {host.get('cpu_count', '?')} cores, {memory} memory"
    for gpu in get_records(facts, "gpus"):
        memory = show_mib(finite_number(gpu.get("memory_total_mib")))
        driver = f"driver {gpu.get('driver_version', '?')}"
        yield f"GPU {gpu.get('index', '?')}", f"{gpu.get('name', '?')}, {memory}, {driver}"
    for name, value in (("code", launch.get("code_version")), ("Python", launch.get("python"))):
        if value:
            yield name, value
    yield from sorted(mapping_or_empty(launch.get("packages") or software.get("packages")).items())


def _check_html(check: Record) -> str:
    return f"<b>{html_text(check.get('id', ''))}</b> {html_text(check.get('name', ''))}"


def _finding_cells(finding: Record) -> list[str]:
    waived = " (waived)" if finding.get("waived") is True else ""
    place = ":".join(str(finding[name]) for name in ("file", "line", "column") if finding.get(name))
    where = " at ".join(part for part in (str(finding.get("path") or ""), place) if part)
    return [
        html_status(finding.get("severity")) + waived,
        f"<b>{html_text(finding.get('code', ''))}</b> {html_text(finding.get('name', ''))}",
        html_text(finding.get("message", "")) + (f"<br>{html_muted(where)}" if where else ""),
        html_text(finding.get("hint", "")),
    ]


def _value_and_origin_html(run: RunRecord, key: str) -> str:
    if key not in run.config:
        return ABSENT
    return f"{html_code(show_value(run.config[key]))} {html_muted(_origin_text(run, key))}"


def _origin_text(run: RunRecord, key: str) -> str:
    """Return the origin of a key as text: file or profile with line, argument, default, or unknown."""
    origin = mapping_or_empty(run.provenance.get(key))
    kind, file, line = (origin.get(name) for name in ("kind", "file", "line"))
    if not isinstance(file, str) or not isinstance(line, int):
        return "unknown"
    overrides = get_list(run.last_launch, "overrides")
    if kind == "override" and 0 < line <= len(overrides):
        return f"command line: {overrides[line - 1]}"
    if kind == "profile":
        return f"profile {Path(file).stem}, line {line}"
    return origin_text(Origin(kind if kind in ("file", "run") else "default", file, line))
