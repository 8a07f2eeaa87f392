"""Examine a run: probe the machine, judge the run, write down what was found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from launcher import console
from launcher.files import make_folder, write_json, write_text, writing
from launcher.levels import probes_for
from launcher.probes.collect import collect
from launcher.probes.probe import Subject
from launcher.report import Report, report_of_run
from neobert import __version__
from neobert.config.schema import Waiver
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.plan import Plan
from neobert.receipt import FILE_NAME as RECEIPT
from neobert.receipt import Receipt, utc_now, write_receipt
from profiles.registry import ResolvedRun
from validators.core import groups_needed, judge
from validators.facts import Facts
from validators.facts_io import facts_from_json, facts_to_json
from validators.finding import Level
from validators.planning import plan_run

DEFAULT_FOLDER = Path(".neobert", "preflight")
DIFF = "working-tree.diff"
FACTS = "facts.json"
REPORT = "preflight.json"


@dataclass(frozen=True, slots=True)
class Examination:
    """A run, what follows from it, what is true of the machine, and the report on all of it."""

    run: ResolvedRun
    plan: Plan
    facts: Facts
    levels: tuple[Level, ...]
    report: Report


def examine(
    run: ResolvedRun,
    levels: tuple[Level, ...],
    *,
    facts: Facts | None = None,
    folder: Path | None,
    strict: bool = False,
) -> Examination:
    """Probe what the levels need, unless facts are given, and judge.

    Args:
        folder: where the difference of the working tree is kept, or None to keep none.
    """
    plan = plan_run(run)
    if facts is None:
        output_dir = Path(run.config.trainer.output_dir).expanduser().absolute()
        diff_file = folder / DIFF if folder else None
        probes = probes_for(levels, groups_needed(run, plan, levels))
        facts = collect(probes, Subject(run.config, output_dir, Path.cwd(), diff_file), console.announce)
    findings, checks = judge(run, plan, facts, levels)
    return Examination(run, plan, facts, levels, report_of_run(run, findings, checks, strict=strict))


def write_results(examination: Examination, folder: Path) -> None:
    """Write report, facts and receipt."""
    write_json(folder / REPORT, examination.report.as_json())
    write_text(folder / FACTS, facts_to_json(examination.facts))
    with writing(folder / RECEIPT):
        write_receipt(make_receipt(examination), folder / RECEIPT)


def make_receipt(examination: Examination) -> Receipt:
    """What was checked, and until when that holds."""
    run, facts, now = examination.run, examination.facts, utc_now()
    report = examination.report.as_json()
    waived = {finding["code"] for finding in report["findings"] if finding["waived"]}
    return Receipt(
        config_digest=run.digest,
        profile=examination.report.profile,
        code_version=code_version(facts),
        created_utc=now.isoformat(),
        expires_utc=(now + timedelta(hours=run.config.guard.receipt_ttl_hours)).isoformat(),
        verdict=examination.report.verdict,
        levels=tuple(str(level) for level in examination.levels),
        checks=tuple(report["checks"]),
        waivers=tuple(_plain(waiver) for waiver in run.config.waivers if waiver.code in waived),
        hostname=facts.host.hostname if facts.host else "",
        versions=facts.software.packages if facts.software else {},
    )


def code_version(facts: Facts) -> str:
    """The project's version, and the commit that the run is launched from."""
    if facts.git is None or not facts.git.sha:
        return __version__
    return f"{__version__}+{facts.git.sha[:12]}{'.dirty' if facts.git.is_dirty else ''}"


def load_facts(path: Path) -> Facts:
    """Read recorded facts. Raises ProjectError where the file holds none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        hint = "`neobert-launch preflight --save-facts FILE` records them"
        message = f"cannot be read: {error.strerror}"
        raise ProjectError("unreadable-facts", message, hint, str(path), EXIT_USAGE) from None
    return facts_from_json(text, str(path))


def results_folder(run: ResolvedRun) -> Path:
    """Where the results of a run's preflight go when nobody says. Version control never sees it."""
    folder = make_folder(DEFAULT_FOLDER / run.digest[:12])
    ignore = DEFAULT_FOLDER.parent / ".gitignore"
    if not ignore.exists():
        write_text(ignore, "*\n")
    return folder


def _plain(waiver: Waiver) -> dict[str, Any]:
    return {name: str(value) for name, value in asdict(waiver).items()}
