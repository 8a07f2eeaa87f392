"""Checks of a dry run: static rules, and rules about the run directory."""

from __future__ import annotations

from pathlib import Path

import validators.rules  # noqa: F401  registers every rule
from launcher.probes.collect import collect
from launcher.probes.output import probe_output
from launcher.probes.probe import Probe, Subject
from launcher.probes.resume import probe_resume
from launcher.report.report import Report, report_of_run
from launcher.terminal import console
from profiles.registry import ResolvedRun
from validators.core import judge
from validators.finding import Level
from validators.planning import plan_run
from validators.rule import RULES

PROBES = (Probe("output", probe_output), Probe("resume", probe_resume))


def judge_dry_run(run: ResolvedRun, folder: Path, *, leads: bool, strict: bool) -> Report:
    """Probe only the run directory and the checkpoint to resume from, and judge.

    Args:
        leads: whether this node owns the run directory; on other nodes only the config is judged.
    """

    probes = PROBES if leads else ()
    facts = collect(probes, Subject(run.config, folder, Path.cwd()), console.announce)
    findings, checks = judge(run, plan_run(run), facts, (Level.STATIC, Level.HOST))
    probed = {probe.group for probe in probes}
    judged = {check.id for check in checks if _is_judged(check.id, probed)}
    return report_of_run(
        run,
        (finding for finding in findings if finding.code in judged),
        (check for check in checks if check.id in judged),
        strict=strict,
    )


def _is_judged(code: str, probed: set[str]) -> bool:
    rule = RULES[code]
    return rule.level is Level.STATIC or (bool(rule.needs) and probed.issuperset(rule.needs))
