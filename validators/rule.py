"""The anatomy of a rule, and the registry that every page, command and test is generated from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation

Judge = Callable[[ResolvedRun, Plan, Facts], Iterator[Violation]]

CODE = re.compile(r"^[A-Z]{3}\d{3}$")


@dataclass(frozen=True, slots=True)
class Rule:
    """A published check.

    Attributes:
        code: three letters and three digits; never reused.
        name: kebab-case, named after the anti-pattern.
        severity: what a violation weighs.
        level: what must have been probed before it can be judged.
        needs: groups of `Facts`; where one is missing the check is unknown, never a pass.
        production_only: judged for production profiles and for runs that declare none.
        waivable: whether a waiver in the run file may lift it.
        judge: the pure function.
    """

    code: str
    name: str
    severity: Severity
    level: Level
    needs: tuple[str, ...]
    production_only: bool
    waivable: bool
    judge: Judge

    @property
    def page(self) -> str:
        """The page that people read: the judge's docstring."""
        return self.judge.__doc__ or ""


RULES: dict[str, Rule] = {}


def rule(
    code: str,
    name: str,
    *,
    severity: Severity,
    level: Level,
    needs: tuple[str, ...] = (),
    production_only: bool = False,
    waivable: bool = True,
) -> Callable[[Judge], Judge]:
    """Register a pure function `(run, plan, facts) -> violations` under a published code."""

    def register(judge: Judge) -> Judge:
        assert CODE.match(code), code
        assert code not in RULES, f"{code} is taken"
        RULES[code] = Rule(code, name, severity, level, needs, production_only, waivable, judge)
        return judge

    return register
