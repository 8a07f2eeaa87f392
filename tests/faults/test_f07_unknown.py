"""F7: a check that throws, hangs or has nothing to go by is unknown, with exit code 3 and never a pass."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.preflight import levels
from launcher.probes.probe import Probe
from tests.faults import machine
from validators.facts import ProbeRecord
from validators.rule import RULES

ASKED = ("preflight", "-p", "a100-prod", "--level", "host,gpu,data", "--output", "out")


def judged_by(group: str) -> set[str]:
    return {code for code, rule in RULES.items() if group in rule.needs and rule.severity == "fail"}


@pytest.mark.parametrize(
    ("group", "status", "reason"),
    [
        ("gpus", "unsupported", "NVML: Driver Not Loaded"),
        ("gpu_health", "timeout", "launcher.probes.nvml_child did not respond within 8 s and was killed"),
        ("gpu_log", "incomplete", "dmesg: read kernel buffer failed: Operation not permitted"),
        ("imports", "timeout", "neobert.probes.hardware.imports did not respond within 90 s and was killed"),
        (
            "inspection",
            "timeout",
            "neobert.data.store.inspection did not respond within 600 s and was killed",
        ),
        ("software", "incomplete", "OSError: Input/output error"),
        ("disk", "timeout", "no answer within 10 s"),
    ],
)
def test_a_probe_without_an_answer(ask, monkeypatch, group, status, reason):
    facts = machine.altered({})
    machine.become(monkeypatch, facts)
    code, report = ask(*ASKED)
    assert (code, report["verdict"]) == (0, "pass"), [f["message"] for f in report["findings"]]

    probes = (ProbeRecord(name=group, status=status, reason=reason),)
    machine.become(monkeypatch, replace(facts, probes=probes, **{group: None}))
    code, report = ask(*ASKED)
    assert (code, report["verdict"]) == (3, "unknown")
    unknown = {check["id"] for check in report["checks"] if check["status"] == "unknown"}
    requested = {check["id"] for check in report["checks"] if check["status"] != "skip"}
    assert unknown >= judged_by(group) & requested
    assert unknown
    assert all(reason in check["message"] for check in report["checks"] if check["id"] in unknown)


@pytest.mark.parametrize("how", ["throws", "hangs"])
def test_a_probe_that_throws_or_hangs(ask, monkeypatch, how):
    def misbehave(_: Any) -> Any:
        if how == "throws":
            raise ZeroDivisionError("by nothing")
        time.sleep(5)

    machine.become(monkeypatch, machine.altered({}))
    others = [probe for probe in levels.GPU_PROBES if probe.group != "gpu_health"]
    broken = Probe("gpu_health", misbehave, deadline_s=0.2)
    monkeypatch.setattr(levels, "GPU_PROBES", (*others, broken))
    code, report = ask(*ASKED)
    assert code == 3
    (check,) = [check for check in report["checks"] if check["id"] == "GPU003"]
    assert check["status"] == "unknown"
    expected = (
        "incomplete: ZeroDivisionError: by nothing" if how == "throws" else "timeout: no answer within 0.2 s"
    )
    assert expected in check["message"]


def test_a_rule_that_throws(ask, monkeypatch):
    def broken(*_: Any) -> Any:
        raise KeyError("uuid")
        yield

    machine.become(monkeypatch, machine.altered({}))
    monkeypatch.setitem(RULES, "GPU008", replace(RULES["GPU008"], judge=broken))
    code, report = ask(*ASKED)
    assert code == 3
    (check,) = [check for check in report["checks"] if check["id"] == "GPU008"]
    assert (check["status"], check["required"]) == ("unknown", True)


def test_what_a_container_cannot_tell_somebody_may_answer_for(ask, monkeypatch, tmp_path):
    """The check says so: it warns, the receipt holds the waiver, and it is no pass."""
    machine.become(monkeypatch, replace(machine.altered({}), gpu_log=None))
    waiver = "{code: GPU004, reason: the node's health check reads the log, expires: 2099-01-01}"
    Path("run.yaml").write_text(f"profile: a100-prod\nwaivers:\n  - {waiver}\n", encoding="utf-8")
    code, report = ask("preflight", "-c", "run.yaml", "--level", "host,gpu,data", "--output", "out")
    assert code == 0
    (check,) = [check for check in report["checks"] if check["id"] == "GPU004"]
    assert check["status"] == "warn"
    assert check["message"].startswith(
        "waived: the node's health check reads the log (until 2099-01-01); gpu_log"
    )
    assert "GPU004" in (tmp_path / "out" / "receipt.json").read_text(encoding="utf-8")
