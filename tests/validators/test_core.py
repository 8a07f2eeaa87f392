"""How rules are selected, judged, placed and waived, and what the verdict makes of it."""

from dataclasses import replace
from datetime import date

import pytest

from neobert.plan import Derived
from profiles.registry import resolve_run
from tests.validators.judging import FACTS
from validators.core import groups_needed, inapplicability_reason, judge, levels_with_rules
from validators.facts import NO_FACTS, ProbeRecord
from validators.finding import CheckResult, Finding, Level, Severity, Status, compute_verdict
from validators.planning import plan_run
from validators.rule import RULES

TODAY = date(2026, 1, 15)
LEVELS = tuple(Level)
WAIVER = {"code": "BUD002", "reason": "the batch is ramped by hand", "expires": date(2026, 3, 31)}
UNDECLARED = {"config.trainer.global_batch_size": None}


def judged(profile, overrides=(), facts=NO_FACTS, levels=LEVELS):
    run = resolve_run(profile, overrides=overrides)
    findings, checks = judge(run, plan_run(run), facts, levels, today=TODAY)
    return findings, {check.id: check for check in checks}


def check(status, *, required=True):
    return CheckResult("XXX001", "made-up", Level.STATIC, status, required, "")


def finding(severity, *, waived=False):
    return Finding("XXX001", "made-up", severity, "seed", "wrong", "mend it", waived=waived)


# --- what can be judged ---------------------------------------------------------------------------


def test_missing_facts_are_unknown_in_the_probes_words():
    facts = replace(
        NO_FACTS, probes=(ProbeRecord(name="gpus", status="unsupported", reason="no NVIDIA driver"),)
    )
    _, checks = judged("a100-prod", facts=facts)
    assert checks["GPU001"].status is Status.UNKNOWN
    assert checks["GPU001"].required
    assert checks["GPU001"].message == "gpus: unsupported: no NVIDIA driver"
    assert checks["CKP004"].message == "disk: was not probed"


def test_gpu_rules_are_skipped_and_not_required_for_a_cpu_profile():
    _, checks = judged("cpu-demo")
    for code in ("GPU001", "GPU002", "PRE002", "ATT001"):
        assert (checks[code].status, checks[code].required) == (Status.SKIP, False)
        assert checks[code].message == "cpu-demo requires no GPU"
    _, checks = judged(None)
    assert checks["GPU001"].message == "the run has no profile that requires a GPU"


def test_production_rules_are_skipped_for_a_smoke_profile():
    _, checks = judged("cpu-demo", levels=(Level.STATIC,))
    assert checks["CKP003"].status is Status.SKIP
    assert checks["CKP003"].message == "applies to production runs only"


def test_production_rules_hold_for_a_run_without_a_profile():
    findings, _ = judged(None, ["trainer.mixed_precision=fp32"], levels=(Level.STATIC,))
    assert {"PRE001", "CFG005"} <= {finding.code for finding in findings}


def test_only_the_levels_that_were_asked_for_are_judged():
    _, checks = judged("a100-prod", levels=(Level.STATIC,))
    assert {check.level for check in checks.values()} == {Level.STATIC}
    assert list(checks) == sorted(checks)


def test_resume_is_not_judged_where_a_run_never_resumes():
    _, checks = judged("a100-prod", ["trainer.resume_from_checkpoint=never"])
    assert (checks["CKP007"].status, checks["CKP007"].required) == (Status.SKIP, False)
    _, checks = judged("a100-prod", ["trainer.resume_from_checkpoint=auto"])
    assert (checks["CKP007"].status, checks["CKP007"].required) == (Status.UNKNOWN, True)


@pytest.mark.parametrize("code", ["CKP001", "OPT001"])
def test_a_rule_that_throws_is_unknown_and_required_whatever_it_weighs(code, monkeypatch):
    def broken(run, plan, facts):
        raise ZeroDivisionError("by nothing")
        yield

    monkeypatch.setitem(RULES, code, replace(RULES[code], judge=broken))
    findings, checks = judged("a100-prod", levels=(Level.STATIC,))
    assert findings == []
    assert (checks[code].status, checks[code].required) == (Status.UNKNOWN, True)
    assert "ZeroDivisionError: by nothing" in checks[code].message
    assert compute_verdict(findings, checks.values()).exit_code == 3


def test_a_predicate_that_throws_is_unknown_too(monkeypatch):
    def broken(run, plan):
        raise KeyError("x")

    monkeypatch.setitem(RULES, "MEM001", replace(RULES["MEM001"], inapplicable=broken))
    _, checks = judged("a100-prod", levels=(Level.STATIC,))
    assert (checks["MEM001"].status, checks["MEM001"].required) == (Status.UNKNOWN, True)


# --- where findings point -------------------------------------------------------------------------


def test_a_value_is_placed_at_its_line(judge_situation, tmp_path):
    text = "profile: a100-prod\ntrainer:\n  max_steps: 400\n  save_steps: 0\n"
    (found,) = judge_situation({"text": text}).of("CKP001")
    assert (found.file, found.line, found.column) == (str(tmp_path / "run.yaml"), 4, 15)


def test_a_missing_value_is_placed_at_its_section(judge_situation, tmp_path):
    text = "profile: a100-prod\nseed: 1\ndataset:\n  streaming: true\n  eval_samples: null\n"
    (found,) = judge_situation({"text": text}).of("DAT007")
    assert (found.file, found.line) == (str(tmp_path / "run.yaml"), 5)
    (found,) = judge_situation({"text": "seed: 1\ntrainer:\n  save_steps: 10\n"}).of("BUD002")
    assert found.line == 2


def test_an_override_is_placed_on_the_command_line():
    findings, _ = judged("a100-prod", ["seed=1", "trainer.save_steps=0"], levels=(Level.STATIC,))
    (found,) = [finding for finding in findings if finding.code == "CKP001"]
    assert (found.file, found.line) == ("<command line>", 2)


# --- waivers --------------------------------------------------------------------------------------


def test_a_waiver_lifts_its_finding_until_its_day(judge_situation):
    situation = UNDECLARED | {"config.waivers": [WAIVER]}
    result = judge_situation(situation, today=date(2026, 3, 31))
    assert [found.waived for found in result.findings if found.code == "BUD002"] == [True]
    assert result.checks["BUD002"].status is Status.WARN
    assert "ramped by hand" in result.checks["BUD002"].message
    assert result.of("CFG009") == []
    assert compute_verdict(result.findings, result.checks.values(), strict=True).name == "pass"


def test_a_waiver_of_a_retired_rule_covers_its_successor_up_to_its_severity(judge_situation):
    idle = {"config.optimizer.name": "muonclip", "config.optimizer.qk_clip_interval": 60_000}
    result = judge_situation(idle | {"config.waivers": [WAIVER | {"code": "OPT004"}]})
    assert result.of("SCH004") == result.of("CFG009") == []
    assert result.checks["SCH004"].message.startswith("waived: OPT004, now SCH004: ")
    split = {"config.dataset.eval_split": "train", "config.waivers": [WAIVER | {"code": "DAT027"}]}
    assert judge_situation(split).status("DAT026") is Status.FAIL


def test_an_expired_waiver_lifts_nothing(judge_situation):
    result = judge_situation(UNDECLARED | {"config.waivers": [WAIVER]}, today=date(2026, 4, 1))
    assert result.status("BUD002") is Status.FAIL
    assert "expired" in result.of("CFG009")[0].message


@pytest.mark.parametrize(
    ("code", "fragment"),
    [("BUD002", "has no effect"), ("MOD002", "is rejected"), ("ZZZ999", "names an unknown rule")],
)
def test_a_waiver_that_does_nothing_is_a_finding(code, fragment, judge_situation):
    (found,) = judge_situation({"config.waivers": [WAIVER | {"code": code}]}).of("CFG009")
    assert fragment in found.message
    assert found.severity is Severity.WARN


@pytest.mark.parametrize("is_in_the_file", [True, False])
def test_an_argument_does_not_answer_for_arguments(is_in_the_file, judge_situation):
    waiver = WAIVER | {"code": "CFG008"}
    text = "waivers=[{code: CFG008, reason: the batch is ramped by hand, expires: 2026-03-31}]"
    result = judge_situation(
        {"config.waivers": [waiver], "overrides": ["seed=5"] if is_in_the_file else [text]}
    )
    assert result.of("CFG008") == []
    verdict = compute_verdict(result.findings, result.checks.values(), strict=True).name
    assert (verdict, result.of("CFG009") == []) == (("pass", True) if is_in_the_file else ("fail", False))


@pytest.mark.parametrize(
    "reason",
    [
        " " * 12,
        "\u200b" * 12,
        "\u00a0 \u200b\ufeff" * 4,
        "why not         ",
        "0123  4567",
        "why\u2060\u2060\u2060\u2060 not",
    ],
)
def test_a_reason_that_nobody_can_read_lifts_nothing(reason, judge_situation):
    result = judge_situation(UNDECLARED | {"config.waivers": [WAIVER | {"reason": reason}]})
    assert result.status("BUD002") is Status.FAIL
    assert "has no readable reason" in result.of("CFG009")[0].message


@pytest.mark.parametrize("reason", ["just enough", "10% is ok!", "разгон пакета", "批次大小由人工逐步增加的"])
def test_a_reason_of_ten_characters_in_any_script_counts(reason, judge_situation):
    result = judge_situation(UNDECLARED | {"config.waivers": [WAIVER | {"reason": reason}]})
    assert (result.status("BUD002"), result.of("CFG009")) == (Status.WARN, [])


def test_what_cannot_be_waived_stands(judge_situation):
    situation = {"config.model.num_attention_heads": 11, "config.waivers": [WAIVER | {"code": "MOD002"}]}
    result = judge_situation(situation)
    assert result.status("MOD002") is Status.FAIL
    assert compute_verdict(result.findings, result.checks.values()).exit_code == 1


def test_a_waiver_of_a_rule_that_was_not_judged_is_left_alone():
    run = resolve_run(
        "a100-prod", overrides=["waivers=[{code: GPU002, reason: shared by design, expires: 2026-03-31}]"]
    )
    findings, _ = judge(run, plan_run(run), NO_FACTS, LEVELS, today=TODAY)
    assert [waiver.code for waiver in run.config.waivers] == ["GPU002"]
    assert [found.message for found in findings if found.code == "CFG009"] == []


# --- verdict --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("findings", "checks", "strict", "expected"),
    [
        ([], [check(Status.PASS)], False, ("pass", 0)),
        ([], [], False, ("pass", 0)),
        ([finding(Severity.FAIL)], [check(Status.FAIL)], False, ("fail", 1)),
        ([finding(Severity.FAIL)], [check(Status.UNKNOWN)], False, ("fail", 1)),
        ([finding(Severity.FAIL, waived=True)], [check(Status.WARN)], True, ("pass", 0)),
        ([finding(Severity.WARN)], [check(Status.WARN)], False, ("pass", 0)),
        ([finding(Severity.WARN)], [check(Status.WARN)], True, ("fail", 1)),
        ([], [check(Status.UNKNOWN)], False, ("unknown", 3)),
        ([], [check(Status.SKIP)], False, ("unknown", 3)),
        ([], [check(Status.UNKNOWN, required=False)], False, ("pass", 0)),
        ([], [check(Status.SKIP, required=False)], True, ("pass", 0)),
    ],
)
def test_verdict(findings, checks, strict, expected):
    verdict = compute_verdict(findings, checks, strict=strict)
    assert (verdict.name, verdict.exit_code) == expected


# --- what is asked for, and what weighs ------------------------------------------------------------


def test_levels_go_from_cheap_to_dear():
    assert levels_with_rules() == tuple(Level)


def test_only_what_will_be_judged_is_probed(monkeypatch):
    def broken(run, plan):
        raise KeyError("x")

    run = resolve_run("cpu-demo")
    plan = plan_run(run)
    assert "disk" in groups_needed(run, plan, (Level.HOST,))
    assert groups_needed(run, plan, (Level.STATIC,)) == frozenset()
    assert "gpus" not in groups_needed(run, plan, (Level.GPU,))
    assert "gpus" in groups_needed(resolve_run("a100-prod"), plan, (Level.GPU,))
    monkeypatch.setitem(RULES, "CKP004", replace(RULES["CKP004"], needs=("made up",), inapplicable=broken))
    assert "made up" in groups_needed(run, plan, (Level.HOST,))


def test_somebody_may_answer_for_what_facts_do_not_say(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "profile: a100-prod\nwaivers:\n"
        "  - {code: PRF001, reason: the card is in no table yet, expires: 2999-12-31}\n",
        encoding="utf-8",
    )
    run = resolve_run(None, [path])
    speed = replace(FACTS.rehearsal.speed, mfu=None)
    facts = replace(FACTS, rehearsal=replace(FACTS.rehearsal, speed=speed))
    _, results = judge(run, plan_run(run), facts, (Level.REHEARSAL,))
    (check,) = [result for result in results if result.id == "PRF001"]
    assert (check.status, check.message.partition(":")[0]) == (Status.WARN, "waived")


def test_a_failure_among_warnings_fails():
    """Ten parameters' worth of tokens warn, and a wall-clock limit fails, under one code."""
    run = resolve_run("a100-prod", overrides=["guard.walltime_limit_hours=1", "trainer.max_steps=12000"])
    plan = plan_run(run)._replace(tokens_per_parameter=Derived(15.0, "given"))
    findings, results = judge(run, plan)
    assert {one.severity for one in findings if one.code == "BUD001"} == {Severity.FAIL, Severity.WARN}
    (check,) = [result for result in results if result.id == "BUD001"]
    assert check.status is Status.FAIL


def test_a_rule_of_every_device_is_judged_on_a_cpu_where_any_of_its_facts_was_looked_for():
    run = resolve_run("cpu-demo")
    rule = replace(RULES["NUM001"], needs=("numerics", "devices"))
    probed = replace(NO_FACTS, probes=(ProbeRecord(name="numerics", status="ok"),))
    assert inapplicability_reason(rule, run, plan_run(run), probed) == ""
    assert inapplicability_reason(rule, run, plan_run(run), NO_FACTS) == "cpu-demo requires no GPU"
