"""What machines read: the published shapes, and escapes that survive any text."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import validators.rules  # noqa: F401  registers every rule
from launcher.report.formats import render
from launcher.report.formats.text import finding_text
from launcher.report.report import Report
from validators.finding import CheckResult, Finding, Level, Severity, Status
from validators.rule import RULES


def thing(*required: str, **properties: Any) -> dict[str, Any]:
    """A JSON object with these keys and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


def closed(**properties: Any) -> dict[str, Any]:
    """A JSON object that always has these keys, and no others."""
    return thing(*properties, **properties)


def several(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


TEXT, SWITCH = {"type": "string"}, {"type": "boolean"}
NUMBER = {"type": "integer", "minimum": 0}
FINDING = closed(
    code=TEXT, name=TEXT, severity={"enum": ["fail", "warn"]}, path=TEXT, message=TEXT | {"minLength": 1},
    hint=TEXT, file=TEXT, line=NUMBER, column=NUMBER, waived=SWITCH, inherited_file=TEXT,
    inherited_line=NUMBER, inherited_column=NUMBER,
)  # fmt: skip
CHECK = thing(
    "id", "status", "required", "message", "duration_s",
    id=TEXT | {"pattern": "^[A-Z]{3}[0-9]{3}$"}, name=TEXT, level=TEXT, message=TEXT, required=SWITCH,
    status={"enum": ["pass", "warn", "fail", "skip", "unknown"]},
    duration_s={"type": "number", "minimum": 0},
)  # fmt: skip
REPORT_SCHEMA = closed(
    schema_version={"const": 1}, verdict={"enum": ["pass", "fail", "unknown"]},
    exit_code={"enum": [0, 1, 2, 3]}, profile=TEXT, config_hash=TEXT | {"pattern": "^([0-9a-f]{64})?$"},
    findings=several(FINDING), checks=several(CHECK),
)  # fmt: skip
VALIDATOR = jsonschema.Draft202012Validator(REPORT_SCHEMA)

ANY_TEXT = st.text(max_size=40)
FINDINGS = st.builds(
    Finding,
    code=st.sampled_from(["CKP001", "CFG001", "odd-code"]),
    name=ANY_TEXT,
    severity=st.sampled_from(Severity),
    path=ANY_TEXT,
    message=st.text(min_size=1, max_size=40),
    hint=ANY_TEXT,
    file=st.sampled_from(["", "<command line>", "a b,c.yaml", "läufe/übung.yaml"]),
    line=st.integers(0, 9),
    column=st.integers(0, 9),
    waived=st.booleans(),
    inherited_file=st.sampled_from(["", "profiles/läufe.yaml"]),
    inherited_line=st.integers(0, 9),
    inherited_column=st.integers(0, 9),
)
CHECKS = st.builds(
    CheckResult,
    id=st.just("CKP001"),
    name=st.just("no-save-cadence"),
    level=st.sampled_from(Level),
    status=st.sampled_from(Status),
    required=st.booleans(),
    message=ANY_TEXT,
    duration_s=st.floats(0, 9),
)
REPORTS = st.builds(
    Report,
    exit_code=st.sampled_from([0, 1, 2, 3]),
    profile=st.just("cpu-demo"),
    config_hash=st.just("0" * 64),
    findings=st.lists(FINDINGS, max_size=4).map(tuple),
    checks=st.lists(CHECKS, max_size=4).map(tuple),
)


def test_the_schema_is_one():
    VALIDATOR.check_schema(REPORT_SCHEMA)


@given(REPORTS)
def test_json_has_the_published_shape(report):
    VALIDATOR.validate(json.loads(render(report, "json")))


@given(REPORTS)
def test_junit_is_xml_with_true_counts(report):
    root = ElementTree.fromstring(render(report, "junit").encode())
    (suite,) = root
    assert int(suite.get("tests", "")) == len(suite)
    assert int(suite.get("failures", "")) == len(suite.findall("testcase/failure"))
    assert not any((each.text or "").endswith("\nhint:") for each in root.iter("failure"))


@given(REPORTS)
def test_github_has_one_line_a_finding(report):
    lines = render(report, "github").split("\n") if report.findings else []
    assert len(lines) == len(report.findings)
    assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in lines)


@given(REPORTS)
def test_text_says_the_verdict(report):
    assert render(report, "text").splitlines()[-1].startswith(report.verdict)


@pytest.mark.parametrize(
    ("hint", "is_told"), [("shorten the warm-up", True), ("lower scheduler.warmup_steps", False)]
)
def test_text_says_the_key_where_the_hint_does_not(hint, is_told):
    finding = Finding("SCH001", "beyond", Severity.FAIL, "scheduler.warmup_steps", "too long", hint)
    assert ("= key: scheduler.warmup_steps" in finding_text(finding)) == is_told


def test_every_rule_is_in_sarif_with_its_page():
    sarif = json.loads(render(Report(0, "", "", (), ()), "sarif"))
    rules = {rule["id"]: rule for rule in sarif["runs"][0]["tool"]["driver"]["rules"]}
    assert rules.keys() == RULES.keys()
    assert all("Why is this bad" in rule["help"]["markdown"] for rule in rules.values())


def test_github_escapes_what_would_end_a_field():
    finding = Finding(
        "CKP001", "x", Severity.FAIL, "", "50 %\nof it", "", file="a,b:c.yaml", line=3, column=2
    )
    line = render(Report(1, "", "", (finding,), ()), "github")
    assert line == "::error file=a%2Cb%3Ac.yaml,line=3,col=2,title=CKP001 x::50 %25%0Aof it"


def test_an_argument_has_no_file_for_github_and_sarif():
    finding = Finding(
        "CKP001", "x", Severity.WARN, "trainer", "m", "", file="<command line>", line=2, column=1
    )
    report = Report(1, "", "", (finding,), ())
    assert "file=" not in render(report, "github")
    (result,) = json.loads(render(report, "sarif"))["runs"][0]["results"]
    assert "physicalLocation" not in result["locations"][0]


def test_waived_findings_are_suppressed():
    finding = Finding("CKP001", "x", Severity.FAIL, "trainer", "m", "", waived=True)
    report = Report(0, "", "", (finding,), ())
    assert render(report, "github").startswith("::notice ")
    assert json.loads(render(report, "sarif"))["runs"][0]["results"][0]["suppressions"]
    assert "1 waived" in render(report, "text")


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "-p", "cpu-demo"), ("lint", "run.yaml"), ("explain", "seed"),
        ("profiles", "show", "cpu-demo"),
        ("preflight", "-p", "cpu-demo", "--level", "static"), ("train", "-c", "run.yaml", "--dry-run"),
        ("runs", "."), ("status", "absent"),
    ],
)  # fmt: skip
def test_every_object_in_json_has_the_version_of_its_schema(arguments, command):
    Path("run.yaml").write_text("profile: cpu-demo\n", encoding="utf-8")
    assert command(*arguments, "--json").json["schema_version"] == 1
