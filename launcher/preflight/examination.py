"""Preflight of a run: probe the machine, evaluate the rules, write the results."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path

import validators.rules  # noqa: F401  registers every rule
from launcher.io.files import convert_write_errors, make_folder, require_writable, write_json, write_text
from launcher.preflight.levels import TEXT_S, probes_for
from launcher.preflight.receipts import Examination, make_receipt
from launcher.preflight.rehearsal_children import warm_up
from launcher.preflight.reused_checks import merge_reused_checks, reused_warnings, select_reused_checks
from launcher.probes.collect import collect
from launcher.probes.disk import probe_output
from launcher.probes.probe import Probe, Subject
from launcher.probes.resume import probe_resume
from launcher.probes.text import probe_text
from launcher.process.waiting_child import WaitingChild
from launcher.report.report import Report, run_report
from launcher.rundir.directory import run_directory
from launcher.terminal.activity import activity, announce
from neobert.config import to_dict
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.plan import Measured, Plan
from neobert.receipt import FILE_NAME as RECEIPT
from neobert.receipt import Receipt, write_receipt
from profiles.registry import ResolvedRun
from validators.core import groups_needed, judge, judge_available
from validators.facts import Facts
from validators.facts_config import facts_for
from validators.facts_io import facts_from_json, facts_to_json
from validators.finding import CheckResult, Level
from validators.planning import plan_run
from validators.rehearsal_parts import rehearsal_measurements

DEFAULT_FOLDER = Path(".neobert", "preflight")
OUTPUT_HINT = "choose a writable folder with --output DIR"
DIFF = "working-tree.diff"
FACTS = "facts.json"
REPORT = "preflight.json"
WARM_UP = "warm_up.json"
PROBES = (Probe("output", probe_output), Probe("resume", probe_resume), Probe("text", probe_text, TEXT_S))


def examine(
    run: ResolvedRun,
    levels: tuple[Level, ...],
    *,
    facts: Facts | None = None,
    folder: Path | None,
    strict: bool = False,
    unguarded: str = "",
    receipt: Receipt | None = None,
    measured_again: Collection[str] = (),
    earlier: Measured | None = None,
    trainer: WaitingChild | None = None,
) -> Examination:
    """Run the probes that the levels need, unless `facts` are given, and evaluate the rules.

    Args:
        facts: recorded facts; measurements of a different config count as missing.
        strict: treat warnings as failures.
        unguarded: reason to launch despite failed checks; empty if there is none.
        folder: folder for the diff of the working tree; None to store none.
        receipt: earlier receipt, whose results replace expensive probes.
        measured_again: groups of facts that are measured despite the receipt, if a rule needs them.
        earlier: measurements of an earlier rehearsal, used for the plan if `facts` have no rehearsal.
        trainer: idle process that will later run the trainer; it may compile its graphs during the probes.
    """
    if facts is None:
        assumed = plan_run(run)
        groups = groups_needed(run, assumed, levels)
        if receipt is not None:
            groups = groups.intersection(measured_again)
        is_repeated = receipt is not None and bool(measured_again)
        warm_up_file = folder / WARM_UP if folder is not None and is_repeated else None
        with activity("checking this machine"):
            facts = collect(
                probes_for(levels, groups),
                _make_subject(run, assumed, folder, trainer),
                announce,
                partial(_warm_up, trainer, run, warm_up_file),
            )
    else:
        facts = facts_for(facts, run.config)
    measured = rehearsal_measurements(facts) or earlier
    predicted = plan_run(run, None, facts.gpus, facts.prepared)
    plan = predicted if measured is None else plan_run(run, measured, facts.gpus, facts.prepared)
    findings, checks = judge(run, plan, facts, levels)
    reused: tuple[CheckResult, ...] = ()
    since = ""
    if receipt is not None:
        merged = merge_reused_checks(checks, receipt, facts)
        reused, checks = select_reused_checks(checks, merged), merged
        since = (receipt.measured_utc or receipt.created_utc) if reused else ""
        findings = [*findings, *reused_warnings(reused, since)]
        levels = tuple(level for level in Level if level in levels or str(level) in receipt.levels)
    report = run_report(run, findings, checks, strict=strict)
    codes = tuple(check.id for check in reused)
    return Examination(run, plan, facts, levels, report, unguarded, predicted, measured, codes, since)


def _make_subject(run: ResolvedRun, plan: Plan, folder: Path | None, trainer: WaitingChild | None) -> Subject:
    diff_file = folder / DIFF if folder else None
    return Subject(
        run.config, run_directory(run), Path.cwd(), diff_file, requires_gpu=run.device == "cuda",
        checkpoint_mib=plan.checkpoint_mib.value, peak_mib=plan.memory_mib.value, trainer=trainer,
    )  # fmt: skip


def _warm_up(trainer: WaitingChild | None, run: ResolvedRun, resolved: Path | None) -> None:
    """Let the trainer process compile its graphs during the heavy probes.

    `resolved`: file to write the config to; None for no warm-up.
    """
    if resolved is not None:
        write_json(resolved, to_dict(run.config))
        warm_up(trainer, run.config, resolved)


def write_report(examination: Examination, folder: Path) -> None:
    """Write preflight.json to the folder, without facts and receipt."""
    write_json(folder / REPORT, examination.report.as_json())


def write_results(examination: Examination, folder: Path) -> None:
    """Write report, facts and receipt to the folder."""
    write_report(examination, folder)
    write_text(folder / FACTS, facts_to_json(examination.facts))
    with convert_write_errors(folder / RECEIPT):
        write_receipt(make_receipt(examination), folder / RECEIPT)


def load_facts(path: Path) -> Facts:
    """Read recorded facts. Raises ProjectError if the file cannot be read or contains no facts."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        hint = "record facts with `neobert-launch preflight --save-facts FILE`"
        message = f"the facts file cannot be read: {error.strerror}"
        raise ProjectError("unreadable-facts", message, hint, str(path), EXIT_USAGE) from None
    return facts_from_json(text, str(path))


def results_folder(run: ResolvedRun, chosen: Path | None) -> Path:
    """Create the folder for the results and return it; a .gitignore makes git ignore the default folder.

    Raises ProjectError if the folder is not writable.
    """
    folder = make_folder(chosen or DEFAULT_FOLDER / run.digest[:12], OUTPUT_HINT)
    require_writable(folder / REPORT, OUTPUT_HINT)
    ignore = DEFAULT_FOLDER.parent / ".gitignore"
    if chosen is None and not ignore.exists():
        write_text(ignore, "*\n")
    return folder


def judge_dry_run(run: ResolvedRun, folder: Path, *, owns_run: bool, strict: bool) -> Report:
    """Check a dry run: probe only the run directory, the checkpoint to resume from, and the text.

    Args:
        owns_run: whether this node owns the run directory; on other nodes only the config is checked.
    """

    probes = PROBES if owns_run else ()
    with activity("checking the run directory and the text"):
        facts = collect(probes, Subject(run.config, folder, Path.cwd()), announce)
    findings, checks = judge_available(run, plan_run(run), facts, {probe.group for probe in probes})
    return run_report(run, findings, checks, strict=strict)
