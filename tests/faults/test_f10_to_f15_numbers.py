"""F10 to F15: what probes and rehearsal measure of wrong numbers ends a preflight with the code of the fault.

That the probes measure it is shown where the faults are planted: tests/probes, tests/rehearsal and tests/gpu.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import app
from tests.faults import machine
from validators.facts_io import facts_to_json

PATH = "numerics.paths.0"
PROBES = f"{PATH}.probes"
LEAK = {f"{PROBES}.isolation.leaked_tokens": 1, f"{PROBES}.isolation.largest_leak": 6e-8}
FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "F10 fp32 products in a bf16 run": (
        {"rehearsal.precision.product_flops": {"bfloat16": 1e13, "float32": 9e13}},
        "PRE003",
        "float32",
    ),
    "F11 segment mask dropped": (
        {f"{PROBES}.isolation.leaked_tokens": 900, f"{PROBES}.isolation.largest_leak": 0.4},
        "NUM001",
        "900 tokens attend to another segment",
    ),
    "F12 one leaked key": (LEAK, "NUM001", "1 tokens attend to another segment"),
    "F12 a gradient alone": (
        {f"{PROBES}.isolation.largest_cross_gradient": 1e-12},
        "NUM001",
        "(must be 0)",
    ),
    "F13 positions not reset": (
        {f"{PROBES}.rotation.misplaced": 1300},
        "NUM002",
        "positions that do not restart",
    ),
    "F14 causal mask in an encoder": (
        {f"{PROBES}.direction.early_moved": 0},
        "NUM003",
        "does not attend to later ones",
    ),
    "F14 no causal mask in a decoder": (
        {f"{PATH}.declared": "causal"},
        "NUM003",
        "early tokens attend to later ones",
    ),
    "F15 a mask of ones over packed documents": (
        {f"{PATH}.mutants.0.probes.isolation.leaked_tokens": 0, f"{PATH}.mutants.0.name": "all-ones mask"},
        "NUM001",
        "all-ones mask",
    ),
    "F15 a mask with packed documents": (
        {"rehearsal.attention.has_mask_with_packing": True},
        "ATT003",
        "mask",
    ),
}


def preflight(changes: dict[str, Any], *more: str) -> int:
    Path("facts.json").write_text(facts_to_json(machine.altered(changes)), encoding="utf-8")
    asked = ["preflight", "-p", "a100-prod", "--level", "full", "--facts", "facts.json", "--output", "out"]
    return app.run([*asked, *more])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_control_the_same_machine_without_a_fault(capsys: Any) -> None:
    assert preflight({}, "--output-format", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert {"PRE003", "NUM001", "NUM002", "NUM003", "ATT003"} <= {
        check["id"] for check in report["checks"] if check["status"] == "pass"
    }


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_named(name: str, capsys: Any) -> None:
    changes, code, fragment = FAULTS[name]
    assert preflight(changes, "--output-format", "json") == 1
    report = json.loads(capsys.readouterr().out)
    assert {finding["code"] for finding in report["findings"]} == {code}
    said = [finding["message"] for finding in report["findings"] if fragment in finding["message"]]
    assert said
    assert preflight(changes) == 1
    told = capsys.readouterr().out
    assert told.startswith("FAIL")
    assert code in told
    assert said[0] in told
