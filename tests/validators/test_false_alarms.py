"""No rule fires on what is sound: production profiles, and 200 runs that vary them, on healthy machines."""

import json

import pytest
from hypothesis import given

from profiles.registry import ResolvedRun, resolve_run
from tests.validators.sound import PRODUCTION, sound_facts, sound_runs
from validators.core import judge
from validators.finding import CheckResult, Finding, Level, Status, compute_verdict
from validators.planning import plan_run
from validators.rule import RULES

Judged = tuple[list[Finding], list[CheckResult]]


def judged(run: ResolvedRun) -> Judged:
    """Judge a run at every level with the facts of a machine that is made for it."""
    plan = plan_run(run)
    return judge(run, plan, sound_facts(run, plan), tuple(Level))


@pytest.mark.parametrize("name", PRODUCTION)
def test_a_production_profile_on_a_healthy_machine(name):
    findings, checks = judged(resolve_run(name))
    assert [(finding.code, finding.message) for finding in findings] == []
    assert [(check.id, check.message) for check in checks if check.status is Status.UNKNOWN] == []
    assert compute_verdict(findings, checks, strict=True).name == "pass"


def test_the_machine_lets_nearly_every_rule_be_judged():
    """The control: silence is worth something only where a rule had its say."""
    spoke = set()
    for name in PRODUCTION:
        spoke |= {check.id for check in judged(resolve_run(name))[1] if check.status is Status.PASS}
    silent = {code for code, rule in RULES.items() if rule.raised_by == "judge"} - spoke
    assert silent <= SILENT


# About streamed or mixed text, a tracker, labels, conversations, plug-ins, fp32, fp8, another run's
# checkpoint, a development run: no production profile.
SILENT = {
    "CKP012",
    "DAT007", "DAT018", "DAT021", "DAT024", "DAT025", "DAT030", "DAT031", "DAT032",
    "DAT033", "DAT035", "DAT037",
    "HST004", "PLG002", "PLG004",
    "PRE005", "PRE007", "PRE008", "PRE009", "PRE011", "PRE012",
    "SFT001", "SFT002", "SFT003", "SFT004", "SFT005", "SFT006", "SFT007", "SFT008", "SFT009", "SFT010",
    "TSK011", "TSK017",
}  # fmt: skip


@given(sound_runs())
def test_a_sound_run(tmp_path_factory, drawn):
    name, config = drawn
    file = tmp_path_factory.getbasetemp() / "sound.yaml"
    file.write_text(json.dumps({"profile": name} | config), encoding="utf-8")
    run = resolve_run(None, [file])
    findings, checks = judge(run, plan_run(run))
    assert [(finding.code, finding.message) for finding in findings] == []
    assert compute_verdict(findings, checks, strict=True).name == "pass"
    findings, checks = judged(run)
    assert [(finding.code, finding.message) for finding in findings] == []
    assert compute_verdict(findings, checks, strict=True).name == "pass"
