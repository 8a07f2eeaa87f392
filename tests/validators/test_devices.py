"""Which devices a rule judges, and which errors of the log it takes for fatal."""

import json
from typing import Any

import pytest

from tests.validators.conftest import RECORDED
from validators.finding import Status
from validators.rules.gpu import FATAL_XIDS

FATAL = (48, 63, 64, 74, 79, 94, 95, 119, 120)
HARMLESS = (13, 31, 43, 45, 62, 65, 73, 78, 93, 96, 118, 121)
TWO = {"config.distributed.nproc_per_node": 2, "config.dataset.num_workers": 1}
SICK = {"has_remap_failed": True, "throttle_reasons": ["hw_slowdown"]}


def xid(code: int, place: str = "0000:3b:00") -> dict[str, Any]:
    return {"facts.gpu_log.xids": [{"code": code, "pci_bus_id": place, "age_s": 60.0}]}


@pytest.mark.parametrize("code", FATAL)
def test_fatal_errors_fail(code, judge_situation):
    judged = judge_situation(xid(code))
    assert judged.status("GPU004") is Status.FAIL
    assert FATAL_XIDS[code] in judged.checks["GPU004"].message


@pytest.mark.parametrize("code", HARMLESS)
def test_errors_of_programs_do_not(code, judge_situation):
    assert judge_situation(xid(code)).status("GPU004") is Status.PASS


@pytest.mark.parametrize(
    ("place", "expected"),
    [("0000:3b:00", Status.FAIL), ("0001:3b:00", Status.PASS), ("0000:3c:00", Status.PASS),
     ("00000000:3B:00.0", Status.FAIL)],
)  # fmt: skip
def test_an_error_is_of_the_device_at_its_place(place, expected, judge_situation):
    assert judge_situation(xid(79, place)).status("GPU004") is expected


def test_an_error_counts_where_no_device_says_its_place(judge_situation):
    nowhere = {"facts.gpus.0.pci_bus_id": ""}
    assert judge_situation(nowhere | xid(79, "0000:aa:00")).status("GPU004") is Status.FAIL


def test_a_smoke_run_is_not_held_to_the_log(judge_situation):
    assert judge_situation(xid(79), profile="gpu-smoke").status("GPU004") is Status.SKIP


@pytest.mark.parametrize(
    ("group", "code", "bad"),
    [("gpu_health", "GPU003", Status.FAIL), ("gpu_load", "GPU008", Status.WARN)],
)
def test_devices_that_the_run_does_not_take_are_not_judged(group, code, bad, judge_situation, recorded):
    healthy = recorded[group][0]
    sick = healthy | {name: value for name, value in SICK.items() if name in healthy}
    both = {f"facts.{group}": [healthy, sick | {"index": 1}]}
    assert judge_situation(both).status(code) is Status.PASS
    assert judge_situation(both | TWO).status(code) is bad
    assert "GPU 1" in judge_situation(both | TWO).of(code)[0].message


@pytest.fixture
def recorded() -> dict[str, Any]:
    return dict(json.loads(RECORDED))


def test_a_cpu_build_of_torch_is_no_fault_of_a_cpu_profile(judge_situation):
    on_cpu = {"profile": "cpu-demo", "facts.imports.cuda_version": ""}
    assert judge_situation(on_cpu).status("HST008") is Status.SKIP
    assert judge_situation({"facts.imports.cuda_version": "", "facts.gpus": []}).of("HST008") == []
