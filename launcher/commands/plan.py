"""`plan`: size, time and cost of a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import validators.rules  # noqa: F401  registers every rule
from launcher.commands.selection import Selection
from launcher.preflight.text_checks import judge_with_text
from launcher.report.formats.text import render
from launcher.report.plan_view import plan_text
from launcher.report.report import run_report
from launcher.terminal import console
from launcher.terminal.values import result_json
from neobert.plan import Plan
from neobert.plan.remaining import Remaining
from profiles.registry import ResolvedRun
from validators.facts import NO_FACTS
from validators.planning import plan_run
from validators.remaining import remaining_in_launch


def run(selection: Selection, output_format: str, *, verbose: bool) -> int:
    """Print the run's plan, and the findings of static rules and local text; return the exit code."""
    resolved = selection.require()
    plan = plan_run(resolved)
    left = remaining_in_launch(resolved, plan, NO_FACTS)
    checked = judge_with_text(resolved, plan)
    report = run_report(resolved, checked.findings, checked.checks)
    texts = [asdict(text) for text in checked.texts]
    if output_format == "json":
        judged = {key: report.as_json()[key] for key in ("verdict", "exit_code", "findings")}
        console.write(result_json({**as_json(resolved, plan, left), "text": texts, **judged}))
    else:
        parts = [plan_text(resolved, plan, left, texts, verbose=verbose)]
        parts += [render(report)] if report.findings else []
        console.write("\n\n".join(parts))
    return report.exit_code


def as_json(resolved: ResolvedRun, plan: Plan, left: Remaining) -> dict[str, Any]:
    """Return the JSON content of the plan: the derived values with their reasons, and the remaining part."""
    derived = {name: asdict(item) for name, item in plan.derived_values()}
    return {
        "profile": resolved.profile.name if resolved.profile else "",
        "config_hash": resolved.digest,
        "assumptions": {"device": plan.assumptions.device_name, "source": plan.assumptions.source},
        "plan": derived,
        "remaining": asdict(left),
    }
