"""`plan`: what a run will be and cost, before it starts."""

from __future__ import annotations

from typing import Any

from launcher import console
from launcher.formats.json import to_json
from launcher.selection import Selection
from launcher.ui.plan_view import plan_text
from neobert.errors import EXIT_OK
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.planning import plan_run


def run(selection: Selection, output_format: str, *, verbose: bool) -> int:
    """Derive the plan and print it; nothing is judged, so a plan that a rule would refuse exits with 0."""
    resolved = selection.require()
    plan = plan_run(resolved)
    if output_format == "json":
        console.write(to_json(as_json(resolved, plan)))
    else:
        console.write(plan_text(resolved, plan, verbose=verbose))
    return EXIT_OK


def as_json(resolved: ResolvedRun, plan: Plan) -> dict[str, Any]:
    """Every derived value with its reason."""
    derived = {name: {"value": item.value, "reason": item.reason} for name, item in plan.derived()}
    return {
        "profile": resolved.profile.name if resolved.profile else "",
        "config_hash": resolved.digest,
        "assumptions": {"device": plan.assumptions.device_name, "source": plan.assumptions.source},
        "plan": derived,
    }
