"""Rule engine: select the rules for a run, evaluate each, locate findings in files and apply waivers."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import NamedTuple

import validators.rules  # noqa: F401  registers every rule
from neobert.config import ConfigError
from neobert.errors import raised_at
from neobert.plan import Plan
from neobert.tasks.specs import SPECS, spec_of
from profiles.registry import ResolvedRun
from validators import waivers
from validators.facts import NO_FACTS, Facts
from validators.finding import CheckResult, Finding, Level, Severity, Status, Violation
from validators.rule import RULES, CannotTellError, RaisedBy, Rule

STATIC = (Level.STATIC,)


class RuleOutcome(NamedTuple):
    """Result of one rule for one run, before waivers; `is_missing` if facts were missing or inconclusive."""

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
    """Evaluate every rule of `levels`; return findings and check results, sorted by rule code.

    `today` decides which waivers are valid; None is the current date in UTC.
    """
    today = today or datetime.now(UTC).date()
    outcomes = [_evaluate_rule(rule, run, plan, facts) for rule in _rules_for_levels(levels)]
    outcomes = [_with_waiver_faults(outcome, outcomes, run, today) for outcome in outcomes]
    raised = [finding for outcome in outcomes for finding in outcome.findings]
    findings = waivers.mark_waived(raised, run.config.waivers, today)
    return findings, [_conclude_check(outcome, findings, run, today) for outcome in outcomes]


def judge_available(
    run: ResolvedRun, plan: Plan, facts: Facts, groups: Collection[str]
) -> tuple[list[Finding], list[CheckResult]]:
    """Evaluate the static rules, and the host-level rules all of whose facts are in `groups`."""
    findings, checks = judge(run, plan, facts, (Level.STATIC, Level.HOST))
    needs = {check.id: RULES[check.id].needs for check in checks}
    judged = {
        check.id
        for check in checks
        if check.level is Level.STATIC or (needs[check.id] and set(groups).issuperset(needs[check.id]))
    }
    return (
        [finding for finding in findings if finding.code in judged],
        [check for check in checks if check.id in judged],
    )


def findings_from_config_error(error: ConfigError) -> list[Finding]:
    """Convert the problems in a config error to findings with the same codes and locations."""
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
    """Return the levels that have rules, from cheap to expensive."""
    used = {rule.level for rule in RULES.values()}
    return tuple(level for level in Level if level in used)


def groups_needed(run: ResolvedRun, plan: Plan, levels: Collection[Level]) -> frozenset[str]:
    """Return the groups of facts that the rules of `levels` need for this run."""
    applicable = (rule for rule in _rules_for_levels(levels) if _may_rule_apply(rule, run, plan))
    return frozenset(group for rule in applicable for group in rule.needs)


def _may_rule_apply(rule: Rule, run: ResolvedRun, plan: Plan) -> bool:
    """Return whether the rule may apply; True if its predicate raises, which the evaluation reports."""
    try:
        return not inapplicability_reason(rule, run, plan)
    except Exception:
        return True


def inapplicability_reason(rule: Rule, run: ResolvedRun, plan: Plan, facts: Facts = NO_FACTS) -> str:
    """Return the reason why the rule does not apply to this run, or an empty string if it applies."""
    if not rule.tasks(spec_of(run.config)):
        names = [name for name, spec in SPECS.items() if rule.tasks(spec)]
        return f"applies to task {' or '.join(names)}, not to {run.config.task}"
    if rule.production_only and not run.is_production:
        return "applies to production runs only"
    if rule.level is Level.GPU and not (rule.any_device and any(map(facts.was_probed, rule.needs))):
        if run.profile is None:
            return "the run has no profile that requires a GPU"
        if run.profile.requires.device != "cuda":
            return f"{run.profile.name} requires no GPU"
    return rule.inapplicable(run, plan)


def _rules_for_levels(levels: Collection[Level]) -> list[Rule]:
    """Return the rules of the levels, except rules that `lint` reports for a whole repository."""
    return [
        RULES[code]
        for code in sorted(RULES)
        if RULES[code].level in levels and RULES[code].raised_by is not RaisedBy.REPOSITORY
    ]


def _evaluate_rule(rule: Rule, run: ResolvedRun, plan: Plan, facts: Facts) -> RuleOutcome:
    """Evaluate one rule; without its facts, or if it raises an exception, the result is unknown."""
    is_required = rule.severity is Severity.FAIL
    start = time.perf_counter()

    def check_result(status: Status, message: str = "", *, required: bool = is_required) -> CheckResult:
        duration_s = time.perf_counter() - start
        return CheckResult(rule.code, rule.name, rule.level, status, required, message, duration_s)

    try:
        reason = inapplicability_reason(rule, run, plan, facts)
        if reason:
            return RuleOutcome(rule, check_result(Status.SKIP, reason, required=False))
        missing = [group for group in rule.needs if getattr(facts, group) is None]
        if missing:
            return RuleOutcome(
                rule, check_result(Status.UNKNOWN, _missing_facts_reasons(facts, missing)), is_missing=True
            )
        findings = tuple(_build_finding(rule, run, violation) for violation in rule.judge(run, plan, facts))
    except CannotTellError as error:
        return RuleOutcome(rule, check_result(Status.UNKNOWN, str(error)), is_missing=True)
    except Exception as error:
        message = f"the rule raised an exception: {type(error).__name__}: {error}{raised_at(error)}"
        return RuleOutcome(rule, check_result(Status.UNKNOWN, message, required=True))
    return RuleOutcome(rule, check_result(Status.PASS), findings)


def _missing_facts_reasons(facts: Facts, groups: Iterable[str]) -> str:
    return "; ".join(f"{group}: {facts.reason_missing(group)}" for group in groups)


def _build_finding(rule: Rule, run: ResolvedRun, violation: Violation) -> Finding:
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
    outcome: RuleOutcome, outcomes: Iterable[RuleOutcome], run: ResolvedRun, today: date
) -> RuleOutcome:
    """Return the outcome; the rule about waivers gets its findings, which depend on all other rules."""
    if outcome.rule.raised_by is not RaisedBy.WAIVERS:
        return outcome
    judged = {other.rule.code for other in outcomes if other.result.status is Status.PASS}
    raised = {finding.code for other in outcomes for finding in other.findings}
    faults = (
        *waivers.waiver_violations(run.config.waivers, judged, raised, today),
        *waivers.violations_for_command_line_waivers(run),
    )
    return outcome._replace(findings=tuple(_build_finding(outcome.rule, run, fault) for fault in faults))


def _conclude_check(
    outcome: RuleOutcome, findings: Iterable[Finding], run: ResolvedRun, today: date
) -> CheckResult:
    own = [finding for finding in findings if finding.code == outcome.rule.code]
    if not own:
        return _with_waived_unknown(outcome, run, today)
    open_findings = [finding for finding in own if not finding.waived]
    if not open_findings:
        reason = waivers.reason_for(outcome.rule.code, run.config.waivers)
        return replace(outcome.result, status=Status.WARN, message=f"waived: {reason}")
    fails = any(finding.severity is Severity.FAIL for finding in open_findings)
    message = "; ".join(finding.message for finding in open_findings)
    return replace(outcome.result, status=Status.FAIL if fails else Status.WARN, message=message)


def _with_waived_unknown(outcome: RuleOutcome, run: ResolvedRun, today: date) -> CheckResult:
    """Return the check result, a warning if its facts are missing and a waiver accepts that."""
    result, code = outcome.result, outcome.rule.code
    if not outcome.is_missing or not waivers.is_waived(
        code, run.config.waivers, today, outcome.rule.severity
    ):
        return result
    message = f"waived: {waivers.reason_for(code, run.config.waivers)}; {result.message}"
    return replace(result, status=Status.WARN, message=message)
