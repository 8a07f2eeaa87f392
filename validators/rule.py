"""Rules and their registry, from which pages, commands and tests are generated."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple, TypeVar

from neobert.plan import Plan
from neobert.tasks.spec import TaskSpec
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation

Violations = Iterator[Violation]
Judge = Callable[[ResolvedRun, Plan, Facts], Violations]
Inapplicable = Callable[[ResolvedRun, Plan], str]

CODE = re.compile(r"^[A-Z]{3}\d{3}$")


class CannotTellError(Exception):
    """Raised by a rule if its facts are present but inconclusive: the check is unknown, never a pass."""


class RaisedBy(StrEnum):
    """Component that reports findings of a rule: nearly always the rule's own function.

    The loader reports errors of unreadable configs, for which no rule can run. Waivers are checked after all
    other rules. A repository is checked by linting each of its files.
    """

    JUDGE = "judge"
    LOADER = "loader"
    WAIVERS = "waivers"
    REPOSITORY = "repository"


def always_applicable(run: ResolvedRun, plan: Plan) -> str:  # noqa: ARG001  the signature of every predicate
    """Return an empty string, because the rule applies to every run."""
    return ""


def applies_to_every_task(spec: TaskSpec) -> bool:  # noqa: ARG001  the signature of every predicate
    """Return True, because the rule applies to every task."""
    return True


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A published check.

    Attributes:
        code: three letters and three digits; never reused.
        name: kebab-case, named after the anti-pattern.
        severity: severity of a violation.
        level: facts that must have been probed before the rule can be evaluated.
        needs: groups of `Facts`; if one is missing, the check is unknown, never a pass.
        tasks: returns whether the rule applies to a task; it asks what a task does, never its name.
        any_device: whether a rule of the GPU level also applies to a CPU that was probed.
        production_only: whether it applies only to production profiles and to runs without a profile.
        waivable: whether a waiver in the run file may accept its findings.
        inapplicable: function that returns the reason why the rule does not apply to a run, or an empty
            string.
        raised_by: component that reports findings with this code.
        judge: pure function that yields the violations of a run.
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
    tasks: Callable[[TaskSpec], bool] = applies_to_every_task
    any_device: bool = False

    @property
    def page(self) -> str:
        """Documentation page, which is the docstring of the rule's function."""
        return inspect.cleandoc(self.judge.__doc__ or "")


class RetiredRule(NamedTuple):
    """The rule that now reports the findings of a retired rule, and the retired rule's severity."""

    successor: str
    severity: Severity


RETIRED = {
    "CFG014": RetiredRule("DAT032", Severity.WARN),
    "CKP013": RetiredRule("DAT029", Severity.FAIL),
    "DAT019": RetiredRule("DAT004", Severity.WARN),
    "DAT023": RetiredRule("DAT021", Severity.WARN),
    "DAT027": RetiredRule("DAT026", Severity.WARN),
    "DAT028": RetiredRule("TSK010", Severity.WARN),
    "DAT036": RetiredRule("DAT029", Severity.FAIL),
    "DAT039": RetiredRule("DAT038", Severity.FAIL),
    "DAT040": RetiredRule("DAT002", Severity.FAIL),
    "HST013": RetiredRule("HST005", Severity.FAIL),
    "MEM005": RetiredRule("MEM001", Severity.FAIL),
    "OPT003": RetiredRule("CFG013", Severity.WARN),
    "OPT004": RetiredRule("SCH004", Severity.WARN),
    "OPT008": RetiredRule("OPT006", Severity.WARN),
    "PRE004": RetiredRule("PRE001", Severity.FAIL),
    "PRE006": RetiredRule("PRE007", Severity.FAIL),
    "PRE010": RetiredRule("HST001", Severity.FAIL),
    "PRE013": RetiredRule("PRE007", Severity.FAIL),
    "SFT011": RetiredRule("SFT003", Severity.FAIL),
    "TSK007": RetiredRule("TSK005", Severity.FAIL),
    "TSK009": RetiredRule("TSK008", Severity.FAIL),
    "TSK016": RetiredRule("DAT030", Severity.FAIL),
}
"""Retired codes, which old waivers and CI files may still name. They are never reused."""
RULES: dict[str, Rule] = {}
Group = TypeVar("Group")


def current_code(code: str) -> str:
    """Return the code of the rule that replaces a retired one; other codes are returned unchanged."""
    return RETIRED[code].successor if code in RETIRED else code


def require_group(group: Group | None) -> Group:
    """Return a group of facts that a rule lists in `needs`, without which the rule is not called."""
    assert group is not None
    return group


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
    tasks: Callable[[TaskSpec], bool] = applies_to_every_task,
    any_device: bool = False,
) -> Callable[[Judge], Judge]:
    """Return a decorator that registers a function `(run, plan, facts) -> violations` as a rule.

    For the parameters, see `Rule`.
    """

    def register(judge: Judge) -> Judge:
        assert CODE.match(code), code
        assert code not in RULES.keys() | RETIRED.keys(), f"{code} is already registered"
        RULES[code] = Rule(
            code, name, severity, level, needs, production_only, waivable, inapplicable, raised_by, judge,
            tasks, any_device,
        )  # fmt: skip
        return judge

    return register


# Most rules about prepared text and about a rehearsal.
data_rule = partial(rule, level=Level.DATA, needs=("inspection",))
rehearsal_rule = partial(rule, level=Level.REHEARSAL, needs=("rehearsal",))
