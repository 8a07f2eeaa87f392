"""One rule over one run, with the facts of the fixtures and what a test changes of them or of the plan."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import validators.rules  # noqa: F401  registers every rule
from neobert.plan import Derived
from profiles.registry import ResolvedRun, resolve_run
from validators.facts import Facts
from validators.facts_io import facts_from_json
from validators.finding import Violation
from validators.planning import plan_run
from validators.rule import RULES

FACTS = facts_from_json((Path(__file__).parent / "fixtures" / "facts.json").read_text(encoding="utf-8"))


@cache
def run_of(*overrides: str, profile: str | None = "a100-prod") -> ResolvedRun:
    """Resolve a run with the published recipe, whose values the tests of limits start from."""
    return resolve_run(profile, [], (*overrides, "pretraining=null"))


def found(code: str, run: ResolvedRun, facts: Facts = FACTS, **plan: Any) -> list[Violation]:
    changed = plan_run(run)._replace(**{name: Derived(value, "given") for name, value in plan.items()})
    return list(RULES[code].judge(run, changed, facts))


def with_facts(group: str, **changes: Any) -> Facts:
    return replace(FACTS, **{group: replace(getattr(FACTS, group), **changes)})


def with_prepared(**changes: Any) -> Facts:
    return with_facts("inspection", prepared=replace(FACTS.inspection.prepared, **changes))


def with_part(part: str, **changes: Any) -> Facts:
    return with_facts("rehearsal", **{part: replace(getattr(FACTS.rehearsal, part), **changes)})


def with_device(**changes: Any) -> Facts:
    return replace(FACTS, devices=(replace(FACTS.devices[0], **changes),))


def healthy(*changes: dict[str, Any]) -> Any:
    return tuple(replace(FACTS.gpu_health[0], **more) for more in changes)
