"""F2, F10, F23 and F25 where only a rehearsal sees them: the named check, the exit code, and its control.

The faults themselves are planted in `tests/rehearsal`; here is what a command makes of them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import app
from tests.faults import machine

ASKED = ("preflight", "-p", "a100-prod", "--level", "static,rehearsal", "--output", "out")
NO_ROOM = "running the worst-case microbatch: CUDA out of memory. Tried to allocate 66.00 GiB"
# Rows that a run would be longer than: what a rehearsal that stopped before its first step has not seen.
UNSEEN = {
    f"rehearsal.{name}": None
    for name in ("speed", "memory", "learning", "accumulation", "evaluation", "telemetry", "watchdog")
} | {"rehearsal.schedule": [], "rehearsal.resumes": []}


@pytest.fixture
def run(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., machine.Answer]:
    monkeypatch.chdir(tmp_path)
    launch = machine.launch(capsys)

    def with_facts(changes: dict[str, Any], *more: str) -> machine.Answer:
        machine.become(monkeypatch, machine.altered(changes))
        return launch(*ASKED, *more)

    return with_facts


FAULTS = {
    "F2: every key is right, and the cards are idle": (
        {"rehearsal.speed.mfu": 0.00004},
        "PRF001",
        "0.004% of the device's peak",
    ),
    "F10: fp32 behind bf16": (
        {"rehearsal.precision.product_flops": {"float32": 1e14}},
        "PRE003",
        "float32 100%",
    ),
    "F23: one long document": (
        {"rehearsal.out_of_memory": NO_ROOM, **UNSEEN},
        "MEM001",
        "Tried to allocate 66.00 GiB",
    ),
    "F25: MiB under the label GB": (
        {"rehearsal.telemetry.gpu_mem_alloc_gib": 5000.0},
        "TEL001",
        "gpu_mem_alloc_gib is 5000.0",
    ),
    "F25: what the driver counts is not what is told": (
        {"rehearsal.telemetry.driver_mib": 68_000},
        "TEL001",
        "68,000 MiB in the driver",
    ),
}


@pytest.mark.parametrize(("changes", "code", "words"), FAULTS.values(), ids=FAULTS)
def test_the_named_check_fails(run, capsys, changes, code, words):
    exit_code, report = run(changes)
    assert exit_code == report["exit_code"] == 1
    failed = {finding["code"]: finding["message"] for finding in report["findings"]}
    assert set(failed) == {code}
    assert words in failed[code]
    assert app.run([*ASKED]) == 1
    out = capsys.readouterr().out
    assert out.startswith("FAIL")
    assert f"fail {code}" in out


def test_without_the_fault_the_same_command_passes(run):
    exit_code, report = run({})
    assert (exit_code, report["verdict"], report["findings"]) == (0, "pass", [])


def test_a_toy_that_satisfies_its_checks_one_by_one_is_seen_twice(run):
    """Saved often, in bf16, with flash attention, on tokens enough: and 128 wide."""
    toy = ("--set", "model.hidden_size=128", "--set", "model.intermediate_size=512", "--set")
    exit_code, report = run({"rehearsal.speed.mfu": 0.002}, *toy, "model.num_attention_heads=2")
    assert exit_code == 1
    assert {"MOD001", "PRF001"} <= {finding["code"] for finding in report["findings"]}
    assert not {"PRE001", "CKP001", "ATT004", "BUD001"} & {finding["code"] for finding in report["findings"]}
