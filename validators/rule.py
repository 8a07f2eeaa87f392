"""The anatomy of a rule, and the registry that every page, command and test is generated from."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from neobert.plan import Plan
from neobert.tasks import TASKS
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation

Violations = Iterator[Violation]
Judge = Callable[[ResolvedRun, Plan, Facts], Violations]
Inapplicable = Callable[[ResolvedRun, Plan], str]

CODE = re.compile(r"^[A-Z]{3}\d{3}$")


class CannotTellError(Exception):
    """Raised by a judge where the facts are there and do not say: the check is unknown, and never a pass."""


class RaisedBy(StrEnum):
    """Who raises a code: nearly always the rule's own judge.

    The loader raises what makes a file unreadable, before there is a run to judge; the waivers' ledger is
    closed after all rules were judged; a repository is judged by linting each of its files.
    """

    JUDGE = "judge"
    LOADER = "loader"
    WAIVERS = "waivers"
    REPOSITORY = "repository"


def always_applicable(run: ResolvedRun, plan: Plan) -> str:  # noqa: ARG001  the signature of every predicate
    """Say of every run that the rule applies to it."""
    return ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A published check.

    Attributes:
        code: three letters and three digits; never reused.
        name: kebab-case, named after the anti-pattern.
        severity: what a violation weighs.
        level: what must have been probed before it can be judged.
        needs: groups of `Facts`; where one is missing the check is unknown, never a pass.
        tasks: the tasks that the rule is about; empty: all.
        any_device: a rule of the GPU's level that says as much of a CPU: judged there where it was probed.
        production_only: judged for production profiles and for runs that declare none.
        waivable: whether a waiver in the run file may lift it.
        inapplicable: why the rule has nothing to say about a run, or an empty string.
        raised_by: who raises the code.
        judge: the pure function.
    """

    code: str
    name: str
    severity: Severity
    level: Level
    needs: tuple[str, ...]
    production_only: bool
    waivable: bool
    inapplicable: Inapplicable
    raised_by: RaisedBy
    judge: Judge
    tasks: tuple[str, ...] = ()
    any_device: bool = False

    @property
    def page(self) -> str:
        """The page that people read: the judge's docstring."""
        return inspect.cleandoc(self.judge.__doc__ or "")


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
    inapplicable: Inapplicable = always_applicable,
    raised_by: RaisedBy = RaisedBy.JUDGE,
    tasks: tuple[str, ...] = (),
    any_device: bool = False,
) -> Callable[[Judge], Judge]:
    """Register a pure function `(run, plan, facts) -> violations` under a published code."""

    def register(judge: Judge) -> Judge:
        assert CODE.match(code), code
        assert code not in RULES, f"{code} is taken"
        assert TASKS.keys() >= set(tasks), tasks
        RULES[code] = Rule(
            code, name, severity, level, needs, production_only, waivable, inapplicable, raised_by, judge,
            tasks, any_device,
        )  # fmt: skip
        return judge

    return register
