"""Recorded facts of real machines: judged here they give the verdict of there; altered, another."""

import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from neobert.plan import Plan
from profiles.registry import ResolvedRun, resolve_run
from tests.facts import record
from tests.facts.record import without_names
from validators.core import judge
from validators.facts_config import facts_for
from validators.facts_io import facts_from_json, facts_to_json
from validators.finding import CheckResult, Level, Status, compute_verdict
from validators.planning import plan_run

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.json"))
RECORDED = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in FILES}
Checks = dict[str, CheckResult]


@cache
def planned(profile: str, *overrides: str) -> tuple[ResolvedRun, Plan]:
    run = resolve_run(profile, overrides=overrides)
    return run, plan_run(run)


def judged(recorded: dict[str, Any]) -> tuple[str, Checks]:
    """Judge recorded facts for the run that they were recorded for."""
    run, plan = planned(recorded["profile"], *recorded["overrides"])
    facts = facts_for(facts_from_json(json.dumps(recorded["facts"])), run.config)
    levels = tuple(Level(name) for name in recorded["levels"])
    findings, checks = judge(run, plan, facts, levels)
    return compute_verdict(findings, checks).name, {check.id: check for check in checks}


def altered(recorded: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> Checks:
    """Judge the same after its facts were changed."""
    other = copy.deepcopy(recorded)
    change(other["facts"])
    return judged(other)[1]


def test_there_are_recordings_of_machines_with_gpus_and_without():
    machines = {"cpu-2-cores", "h200-x1", "h200-one-of-four", "h200-x2", "h200-x4"}
    assert machines | {"h200-rehearsal"} <= RECORDED.keys()


@pytest.mark.parametrize("name", RECORDED)
def test_a_replay_gives_the_recorded_verdict(name):
    verdict, checks = judged(RECORDED[name])
    assert verdict == RECORDED[name]["verdict"]
    statuses = {code: str(check.status) for code, check in checks.items()}
    assert {code: statuses[code] for code in RECORDED[name]["statuses"]} == RECORDED[name]["statuses"]


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_survives_being_written_and_names_no_place(name):
    facts = facts_from_json(json.dumps(RECORDED[name]["facts"]))
    assert facts_from_json(facts_to_json(facts)) == facts
    assert without_names(RECORDED[name]["facts"]) == RECORDED[name]["facts"]


def replayed(name: str, *more: str) -> tuple[str, Checks]:
    """Judge recorded facts for the same run but for some keys."""
    recorded = RECORDED[name]
    return judged(recorded | {"overrides": [*recorded["overrides"], *more]})


def test_nothing_that_a_rehearsal_measured_of_another_model_is_told():
    verdict, checks = replayed("h200-rehearsal", "model.num_hidden_layers=12", "optimizer.lr=1e-4")
    assert verdict == "unknown"
    reason = (
        "measured for another config: model.num_hidden_layers 28, now 12; optimizer.lr 0.0006, now 0.0001"
    )
    for code in ("NUM005", "PRF001", "CKP006", "MEM002"):
        assert checks[code].status is Status.UNKNOWN
        assert reason in checks[code].message


@pytest.mark.parametrize("key", ["guard.max_lost_minutes=5", "trainer.save_steps=50", "wandb.mode=offline"])
def test_how_a_run_is_guarded_and_named_voids_no_recording(key):
    for name, recorded in RECORDED.items():
        assert replayed(name, key)[0] == recorded["verdict"]


def test_a_machine_is_the_same_whatever_runs_on_it():
    before, now = (replayed("h200-one-of-four", *more)[1] for more in ((), ("seed=8",)))
    assert {code for code in now if now[code].status is not before[code].status} == {
        "NUM001", "NUM002", "NUM003", "NUM004",
    }  # fmt: skip
    assert {str(now[code].status) for code in ("GPU001", "GPU005", "GPU007")} <= {"pass", "warn"}


def test_a_checkpoint_that_was_not_looked_for_is_not_missing():
    checks = replayed("cpu-2-cores", "trainer.resume_from_checkpoint=auto")[1]
    assert checks["CKP007"].status is Status.UNKNOWN
    assert checks["CKP007"].message.endswith("trainer.resume_from_checkpoint never, not auto")


def test_a_key_that_the_recorder_had_not_was_what_it_is_by_default():
    older = copy.deepcopy(RECORDED["h200-rehearsal"])
    del older["facts"]["measured_for"]["keys"]["seed"]
    assert judged(older)[0] == RECORDED["h200-rehearsal"]["verdict"]
    assert judged(older | {"overrides": [*older["overrides"], "seed=8"]})[0] == "unknown"


def test_ranks_that_read_something_else_than_the_run_are_still_named():
    checks = altered(RECORDED["h200-x2"], put("distributed.ranks.1.config_digest", "0" * 64).make)
    assert "rank 1 has a different config" in checks["DST001"].message


@dataclass(frozen=True)
class Alteration:
    """Something else that the machine might have said of one group of facts."""

    group: str
    make: Callable[[dict[str, Any]], None]


def drop(group: str, status: str, reason: str) -> Alteration:
    """The probe of a group ended otherwise."""

    def change(facts: dict[str, Any]) -> None:
        facts[group] = None
        facts["probes"] = [probe for probe in facts["probes"] if probe["name"] != group]
        facts["probes"].append({"name": group, "status": status, "reason": reason, "duration_s": 8.0})

    return Alteration(group, change)


def put(path: str, value: Any) -> Alteration:
    """One value is another."""
    *parents, last = path.split(".")

    def change(facts: dict[str, Any]) -> None:
        place: Any = facts
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place[name]
        place[last] = value

    return Alteration(path.partition(".")[0], change)


def made_up() -> dict[str, Any]:
    """The machine that the rules' fixtures describe."""
    fixture = HERE.parent / "validators" / "fixtures" / "facts.json"
    facts = json.loads(fixture.read_text(encoding="utf-8"))
    return {
        "profile": "a100-prod", "overrides": [], "levels": ["host", "gpu"], "facts": facts,
    }  # fmt: skip


WITH_GPUS = {
    name: recorded
    for name, recorded in RECORDED.items()
    if "gpu" in recorded["levels"] and recorded["facts"]["gpus"]
}
MACHINES = WITH_GPUS | {"made-up": made_up()}
FOREIGN = [{"pid": 4711, "name": "python", "memory_mib": 20480}]
NO_NVML = "nvidia-ml-py is not installed"
NO_DEVICE = "torch 2.11.0 finds no CUDA device"
SLOWED = ["hw_thermal_slowdown", "sw_power_cap"]
FIRST_PATH = "numerics.paths.0.probes"

ALTERATIONS = [
    (drop("gpu_health", "unsupported", NO_NVML), "GPU003", "unknown", NO_NVML),
    (drop("gpu_load", "unsupported", NO_NVML), "GPU008", "unknown", NO_NVML),
    (drop("gpus", "timeout", "no answer within 8 s"), "GPU001", "unknown", "timeout: no answer"),
    (drop("gpu_log", "incomplete", "dmesg: Operation not permitted"), "GPU004", "unknown", "not permitted"),
    (drop("numerics", "unsupported", NO_DEVICE), "NUM001", "unknown", NO_DEVICE),
    (drop("devices", "timeout", "no answer within 60 s"), "GPU007", "unknown", "timeout: no answer"),
    (put("gpus.0.processes", FOREIGN), "GPU002", "fail", "process 4711 (python)"),
    (put("gpus.0.memory_used_mib", 21504), "GPU002", "fail", "21,504 of"),
    (put("gpus.0.name", "NVIDIA L4"), "GPU001", "fail", "NVIDIA L4"),
    (put("gpu_health.0.uncorrected_errors", 2), "GPU003", "fail", "2 uncorrected memory errors"),
    (put("gpu_health.0.is_remap_pending", True), "GPU003", "fail", "is pending until a reset"),
    (put("gpu_load.0.throttle_reasons", SLOWED), "GPU008", "warn", "hw_thermal_slowdown"),
    (put("imports.kernel_error", "cuda:0: driver version is insufficient"), "HST008", "fail", "insufficient"),
    (put("gpus.0.is_mig_enabled", True), "GPU001", "fail", "MIG mode"),
    (put("gpus", []), "GPU001", "fail", "0 GPUs visible"),
    (put("gpu_health.0.pcie_width", 4), "GPU006", "warn", "4 of 16 PCIe lanes"),
    (put("devices.0.gemm_flops", 1.5e14), "GPU005", "fail", "150 TFLOP/s"),
    (put("devices.0.wrong_answers", 1), "GPU007", "fail", "1 of 24 known products"),
    (put(f"{FIRST_PATH}.isolation.leaked_tokens", 3), "NUM001", "fail", "3 tokens attend"),
    (
        put(f"{FIRST_PATH}.repeats.loss_moved", 0.5),
        "NUM004",
        "warn",
        "losses of two identical steps differ by 0.5",
    ),
]


def having(group: str) -> list[tuple[str, dict[str, Any]]]:
    """The machines whose recording has a group of facts."""
    return [(name, each) for name, each in MACHINES.items() if each["facts"].get(group) is not None]


CASES = [
    pytest.param(machine, *row, id=f"{name}-{row[1]}-{row[3]}")
    for number, row in enumerate(ALTERATIONS)
    for name, machine in [having(row[0].group)[number % len(having(row[0].group))]]
]


@pytest.mark.parametrize(("machine", "change", "code", "status", "says"), CASES)
def test_an_altered_machine(machine, change, code, status, says):
    before = judged(machine)[1][code]
    assert says not in before.message
    check = altered(machine, change.make)[code]
    assert (str(check.status), says in check.message) == (status, True), check.message
    if check.status is Status.UNKNOWN:
        assert check.required == before.required


def test_a_card_that_was_measured_before_bursts_were_is_held_by_what_it_keeps_up():
    """The one of four H200 that was visible, at its limit of 700 W."""
    machine = RECORDED["h200-one-of-four"]
    assert "718 TFLOP/s at best, 73% of" in judged(machine)[1]["GPU005"].message
    in_a_burst = altered(machine, put("devices.0.burst_flops", 7.9e14).make)
    assert str(in_a_burst["GPU005"].status) == "pass"


def test_a_value_may_stand_behind_an_option(tmp_path, capsys):
    arguments = ["here", "cpu-demo", "--level", "static", "--folder", str(tmp_path), "trainer.max_steps=40"]
    record.main(arguments)
    written = json.loads((tmp_path / "here.json").read_text(encoding="utf-8"))
    assert written["overrides"] == ["trainer.max_steps=40"]
    assert judged(written)[0] == written["verdict"]


def test_progress_is_told_with_the_seconds_since_the_start(capsys):
    record.progress(time.monotonic() - 12)("measuring distributed")
    reported = capsys.readouterr()
    seconds, *words = reported.err.split()
    assert (reported.out, words) == ("", ["s", "measuring", "distributed"])
    assert float(seconds) >= 12
