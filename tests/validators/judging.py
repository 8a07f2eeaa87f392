"""One rule over one run, with the facts of the fixtures and whatever values of the plan a test gives."""

from __future__ import annotations

from dataclasses import replace
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


def run_of(*overrides: str, profile: str | None = "a100-prod") -> ResolvedRun:
    return resolve_run(profile, [], overrides)


def found(code: str, run: ResolvedRun, facts: Facts = FACTS, **plan: Any) -> list[Violation]:
    changed = replace(plan_run(run), **{name: Derived(value, "given") for name, value in plan.items()})
    return list(RULES[code].judge(run, changed, facts))
