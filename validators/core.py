"""Judge a run: select the rules, see whether each can be judged, judge it, place and waive what it found."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

import validators.rules  # noqa: F401  registers every rule
from neobert.config import ConfigError
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators import waivers
from validators.facts import NO_FACTS, Facts
from validators.finding import CheckResult, Finding, Level, Severity, Status, Violation
from validators.rule import RULES, CannotTellError, RaisedBy, Rule

STATIC = (Level.STATIC,)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rule said of one run, before waivers. `is_missing`: there were no facts to judge."""

    rule: Rule
    result: CheckResult
    findings: tuple[Finding, ...] = ()
    is_missing: bool = False


def judge(
    run: ResolvedRun,
    plan: Plan,
    facts: Facts = NO_FACTS,
    levels: Collection[Level] = STATIC,
    *,
    today: date | None = None,
) -> tuple[list[Finding], list[CheckResult]]:
    """Judge every rule of `levels`; return what was found and how each check ended, in order of the codes.

    `today` decides which waivers stand; None is the present day in UTC.
    """
    today = today or datetime.now(UTC).date()
    outcomes = [_outcome(rule, run, plan, facts) for rule in _selected(levels)]
    outcomes = [_with_waiver_faults(outcome, outcomes, run, today) for outcome in outcomes]
    found = [finding for outcome in outcomes for finding in outcome.findings]
    findings = waivers.lift(found, run.config.waivers, today)
    return findings, [_conclude(outcome, findings, run, today) for outcome in outcomes]


def findings_of(error: ConfigError) -> list[Finding]:
    """Turn what the loader refused into findings with the same codes."""
    return [
        Finding(
            code=issue.code,
            name=RULES[issue.code].name,
            severity=Severity.FAIL,
            path=issue.path,
            message=issue.message,
            hint=issue.hint,
            file=issue.file,
            line=issue.line,
            column=issue.column,
        )
        for issue in error.issues
    ]


def levels_with_rules() -> tuple[Level, ...]:
    """Return the levels that have something to judge, from cheap to dear."""
    found = {rule.level for rule in RULES.values()}
    return tuple(level for level in Level if level in found)


def groups_needed(run: ResolvedRun, plan: Plan, levels: Collection[Level]) -> frozenset[str]:
    """Return the groups of facts that the rules of `levels` will ask for about this run."""
    applicable = (rule for rule in _selected(levels) if _may_apply(rule, run, plan))
    return frozenset(group for rule in applicable for group in rule.needs)


def _may_apply(rule: Rule, run: ResolvedRun, plan: Plan) -> bool:
    """A predicate that throws has not said no; judging says what it threw."""
    try:
        return not inapplicable_because(rule, run, plan)
    except Exception:
        return True


def inapplicable_because(rule: Rule, run: ResolvedRun, plan: Plan, facts: Facts = NO_FACTS) -> str:
    """Say why the rule has nothing to say about this run; empty where it applies."""
    if rule.tasks and run.config.task not in rule.tasks:
        return f"about task {' or '.join(rule.tasks)}, and this run's task is {run.config.task}"
    if rule.production_only and not run.is_production:
        return "judged for production runs only"
    if rule.level is Level.GPU and not (rule.any_device and any(map(facts.was_probed, rule.needs))):
        if run.profile is None:
            return "no profile requires a GPU"
        if run.profile.requires.device != "cuda":
            return f"{run.profile.name} requires no GPU"
    return rule.inapplicable(run, plan)


def _selected(levels: Collection[Level]) -> list[Rule]:
    """A repository's rule is judged by linting its files; it says nothing about one run."""
    return [
        RULES[code]
        for code in sorted(RULES)
        if RULES[code].level in levels and RULES[code].raised_by is not RaisedBy.REPOSITORY
    ]


def _outcome(rule: Rule, run: ResolvedRun, plan: Plan, facts: Facts) -> Outcome:
    start = time.perf_counter()
    outcome = _judge_rule(rule, run, plan, facts)
    return replace(outcome, result=replace(outcome.result, duration_s=time.perf_counter() - start))


def _judge_rule(rule: Rule, run: ResolvedRun, plan: Plan, facts: Facts) -> Outcome:
    """A rule that throws has judged nothing, and a guard must not pass on it, whatever the rule weighs."""
    try:
        because = inapplicable_because(rule, run, plan, facts)
        if because:
            return Outcome(rule, _result(rule, Status.SKIP, because, required=False))
        missing = [group for group in rule.needs if getattr(facts, group) is None]
        if missing:
            return Outcome(rule, _result(rule, Status.UNKNOWN, _reasons(facts, missing)), is_missing=True)
        found = tuple(_finding(rule, run, violation) for violation in rule.judge(run, plan, facts))
    except CannotTellError as error:
        return Outcome(rule, _result(rule, Status.UNKNOWN, str(error)), is_missing=True)
    except Exception as error:
        message = f"the rule itself failed: {type(error).__name__}: {error}"
        return Outcome(rule, _result(rule, Status.UNKNOWN, message, required=True))
    return Outcome(rule, _result(rule, Status.PASS, ""), found)


def _reasons(facts: Facts, groups: Iterable[str]) -> str:
    return "; ".join(f"{group}: {facts.reason_missing(group)}" for group in groups)


def _result(rule: Rule, status: Status, message: str, *, required: bool | None = None) -> CheckResult:
    is_required = rule.severity is Severity.FAIL if required is None else required
    return CheckResult(rule.code, rule.name, rule.level, status, is_required, message)


def _finding(rule: Rule, run: ResolvedRun, violation: Violation) -> Finding:
    place = run.place(violation.path)
    return Finding(
        code=rule.code,
        name=rule.name,
        severity=violation.severity or rule.severity,
        path=violation.path,
        message=violation.message,
        hint=violation.hint,
        file=place.file,
        line=place.line,
        column=place.column,
    )


def _with_waiver_faults(
    outcome: Outcome, outcomes: Iterable[Outcome], run: ResolvedRun, today: date
) -> Outcome:
    """The waivers can only be judged when all else has been."""
    if outcome.rule.raised_by is not RaisedBy.WAIVERS:
        return outcome
    judged = {other.rule.code for other in outcomes if other.result.status is Status.PASS}
    found = {finding.code for other in outcomes for finding in other.findings}
    faults = (*waivers.faults(run.config.waivers, judged, found, today), *waivers.lifts_itself(run))
    return replace(outcome, findings=tuple(_finding(outcome.rule, run, fault) for fault in faults))


def _conclude(outcome: Outcome, findings: Iterable[Finding], run: ResolvedRun, today: date) -> CheckResult:
    own = [finding for finding in findings if finding.code == outcome.rule.code]
    if not own:
        return _answered_for(outcome, run, today)
    standing = [finding for finding in own if not finding.waived]
    if not standing:
        reason = waivers.reason_for(outcome.rule.code, run.config.waivers)
        return replace(outcome.result, status=Status.WARN, message=f"waived: {reason}")
    fails = any(finding.severity is Severity.FAIL for finding in standing)
    message = "; ".join(finding.message for finding in standing)
    return replace(outcome.result, status=Status.FAIL if fails else Status.WARN, message=message)


def _answered_for(outcome: Outcome, run: ResolvedRun, today: date) -> CheckResult:
    """What this machine cannot tell somebody may answer for, by a waiver. It is no pass all the same."""
    result, code = outcome.result, outcome.rule.code
    if not outcome.is_missing or not waivers.stands(code, run.config.waivers, today):
        return result
    message = f"waived: {waivers.reason_for(code, run.config.waivers)}; {result.message}"
    return replace(result, status=Status.WARN, message=message)
