"""Recorded facts of real machines: judged here they give the verdict of there; altered, another."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiles.registry import resolve_run
from tests.facts.record import without_names
from validators.core import judge
from validators.facts_io import facts_from_json, facts_to_json
from validators.finding import CheckResult, Level, Status
from validators.planning import plan_run
from validators.verdict import verdict_of

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.json"))
RECORDED = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in FILES}
Checks = dict[str, CheckResult]


def judged(recorded: dict[str, Any]) -> tuple[str, Checks]:
    """Judge recorded facts for the run that they were recorded for."""
    run = resolve_run(recorded["profile"], overrides=recorded["overrides"])
    # A later version of the schema gives the same run another digest; the ranks named the one of their day.
    run = replace(run, digest=recorded["digest"])
    facts = facts_from_json(json.dumps(recorded["facts"]))
    levels = tuple(Level(name) for name in recorded["levels"])
    findings, checks = judge(run, plan_run(run), facts, levels)
    return verdict_of(findings, checks).name, {check.id: check for check in checks}


def altered(recorded: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> Checks:
    """Judge the same after its facts were changed."""
    other = copy.deepcopy(recorded)
    change(other["facts"])
    return judged(other)[1]


def test_there_are_recordings() -> None:
    assert "cpu-2-cores" in RECORDED


@pytest.mark.parametrize("name", RECORDED)
def test_a_replay_gives_the_recorded_verdict(name: str) -> None:
    verdict, checks = judged(RECORDED[name])
    assert verdict == RECORDED[name]["verdict"]
    statuses = {code: str(check.status) for code, check in checks.items()}
    assert {code: statuses[code] for code in RECORDED[name]["statuses"]} == RECORDED[name]["statuses"]


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_survives_being_written_and_names_no_place(name: str) -> None:
    facts = facts_from_json(json.dumps(RECORDED[name]["facts"]))
    assert facts_from_json(facts_to_json(facts)) == facts
    assert without_names(RECORDED[name]["facts"]) == RECORDED[name]["facts"]


def drop(group: str, status: str, reason: str) -> Callable[[dict[str, Any]], None]:
    """The probe of a group ended otherwise."""

    def change(facts: dict[str, Any]) -> None:
        facts[group] = None
        facts["probes"] = [probe for probe in facts["probes"] if probe["name"] != group]
        facts["probes"].append({"name": group, "status": status, "reason": reason, "duration_s": 8.0})

    return change


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(facts: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        place: Any = facts
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place[name]
        place[last] = value

    return change


GPU_FILES = [name for name, recorded in RECORDED.items() if recorded["facts"]["gpus"]]
MACHINES = [*GPU_FILES, "made-up"]
FOREIGN = [{"pid": 4711, "name": "python", "memory_mib": 20480}]


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A recording of a machine with GPUs, or the one that the rules' fixtures describe."""
    if request.param in RECORDED:
        return RECORDED[request.param]
    fixture = HERE.parent / "validators" / "fixtures" / "facts.json"
    facts = json.loads(fixture.read_text(encoding="utf-8"))
    return {
        "profile": "a100-prod", "overrides": [], "digest": "0", "levels": ["host", "gpu"], "facts": facts,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "code", "status", "says"),
    [
        (drop("gpu_health", "unsupported", "nvidia-ml-py is not installed"), "GPU003", "unknown",
         "nvidia-ml-py"),
        (drop("gpus", "timeout", "no answer within 8 s"), "GPU001", "unknown", "timeout: no answer"),
        (drop("gpu_log", "incomplete", "dmesg: Operation not permitted"), "GPU004", "unknown",
         "not permitted"),
        (put("gpus.0.processes", FOREIGN), "GPU002", "fail", "process 4711 (python)"),
        (put("gpus.0.memory_used_mib", 21504), "GPU002", "fail", "21,504 of"),
        (put("gpu_health.0.uncorrected_errors", 2), "GPU003", "fail", "2 uncorrected memory errors"),
        (put("gpu_health.0.is_remap_pending", True), "GPU003", "fail", "waits for a reset"),
        (put("gpu_load.0.throttle_reasons", ["hw_thermal_slowdown"]), "GPU008", "warn",
         "hw_thermal_slowdown"),
        (put("imports.kernel_error", "cuda:0: driver version is insufficient"), "HST008", "fail",
         "insufficient"),
        (put("gpus.0.is_mig_enabled", True), "GPU001", "fail", "split by MIG"),
        (put("gpus", []), "GPU001", "fail", "0 GPUs are visible"),
    ],
)  # fmt: skip
def test_an_altered_machine(machine: dict[str, Any], change: Any, code: str, status: str, says: str) -> None:
    facts = machine["facts"]
    if not all(facts.get(group) for group in ("gpu_health", "gpu_load", "imports")):
        pytest.skip("this machine did not tell what is altered here")
    check = altered(machine, change)[code]
    assert (str(check.status), says in check.message) == (status, True), check.message
    if check.status is Status.UNKNOWN:
        assert check.required
