"""`preflight`: what cannot be judged is no pass; facts are judged again; a receipt says what was checked."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from launcher.commands import preflight
from launcher.preflight import levels
from launcher.preflight.examination import examine
from launcher.preflight.receipts import make_receipt, read_measurements
from launcher.probes.gpus import NO_GPU
from launcher.probes.probe import Probe, Subject, UnsupportedError
from launcher.probes.software import probe_software
from launcher.terminal import console
from neobert.receipt import explain_mismatch, read_receipt, with_digest
from profiles.registry import resolve_run
from tests.faults.machine import altered
from validators.facts_gpu import GpuFacts
from validators.facts_host import DataFacts, DiskFacts, SoftwareFacts
from validators.facts_io import facts_from_json
from validators.finding import Level

pytestmark = pytest.mark.child

Measure = Callable[[Any], Any]
JSON = ("--output-format", "json")
RECORDED = altered({})
HEAD = ("schema_version", "recorded_utc", "measured_for", "probes")

A100 = GpuFacts(
    index=0,
    uuid="GPU-1",
    name="NVIDIA A100-SXM4-80GB",
    compute_capability=(8, 0),
    memory_total_mib=81920,
    memory_used_mib=4,
    driver_version="560.35",
)
TEXT = DataFacts(
    source="text",
    exists=True,
    is_readable=True,
    num_files=1,
    size_bytes=1,
    tokenizer="",
    tokenizer_exists=True,
)
DISK = DiskFacts(
    path="/data",
    filesystem="ext4",
    free_mib=500_000,
    free_inodes=10_000_000,
    is_writable=True,
    rename_works=True,
    fsync_works=True,
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Stand-ins for what this machine lacks: the data of a production profile, its disk, its GPUs."""

    def have(devices: tuple[GpuFacts, ...] | None, **more: Measure) -> None:
        stand_ins = {"data": lambda _: TEXT, "disk": lambda _: DISK, "software": _with_triton, **more}
        groups = {probe.group: probe.measure for probe in levels.HOST_PROBES} | stand_ins
        probes = tuple(Probe(group, measure) for group, measure in groups.items())
        on_device = [field.name for field in fields(RECORDED) if field.name not in {*groups, "gpus", *HEAD}]
        monkeypatch.setattr(levels, "HOST_PROBES", probes)
        monkeypatch.setattr(levels, "GPU_PROBES", (Probe("gpus", lambda _: _gpus(devices)),))
        monkeypatch.setattr(
            levels,
            "HEAVY_PROBES",
            tuple(Probe(name, _recorded(name, devices), is_heavy=True) for name in on_device),
        )

    return have


def _recorded(group: str, devices: tuple[GpuFacts, ...] | None) -> Measure:
    """What an idle, healthy A100 said of itself, or nothing where there is none."""

    def measure(_: Subject) -> Any:
        if devices is None and group != "imports":
            raise UnsupportedError(NO_GPU)
        return getattr(RECORDED, group)

    return measure


def _gpus(devices: tuple[GpuFacts, ...] | None) -> tuple[GpuFacts, ...]:
    if devices is None:
        raise UnsupportedError(NO_GPU)
    return devices


def _with_triton(subject: Subject) -> SoftwareFacts:
    found = probe_software(subject)
    return replace(found, packages={**found.packages, "triton": "3.6.0"})


def checks_of(report: Any) -> dict[str, str]:
    return {check["id"]: check["status"] for check in report["checks"]}


def test_production_without_a_gpu_is_unknown_and_never_a_pass(command, machine):
    machine(None)
    answer = command("preflight", "--profile", "a100-prod", *JSON)
    assert (answer.code, answer.json["verdict"], answer.json["exit_code"]) == (3, "unknown", 3)
    statuses = {check["id"]: check["status"] for check in answer.json["checks"] if check["level"] == "gpu"}
    assert statuses
    assert set(statuses.values()) <= {"skip", "unknown"}
    static = {check["status"] for check in answer.json["checks"] if check["level"] == "static"}
    assert static <= {"pass", "skip"}
    assert command("preflight", "--profile", "a100-prod", "--level", "static").code == 0


def test_every_level_can_be_asked_for_and_judges_its_own_checks(command, machine):
    machine(None)
    for name in Level:
        answer = command("preflight", "-p", "cpu-demo", "--level", str(name), *JSON)
        assert {check["level"] for check in answer.json["checks"]} == {str(name)}
    assert set(levels.NAMES["full"]) == set(levels.JUDGED) == set(Level)
    assert command("preflight", "-p", "cpu-demo", "--level", "rehearsals").code == 2


def test_a_production_run_is_checked_in_full_where_nobody_says(command, machine):
    machine((A100,))
    report = command("preflight", "-p", "a100-prod", *JSON).json
    assert {check["level"] for check in report["checks"]} == set(Level)
    report = command("preflight", "-p", "cpu-demo", *JSON).json
    assert {check["level"] for check in report["checks"]} == {"static", "host", "gpu"}


def test_a_development_run_without_a_gpu_is_told_the_other_profile(command, machine):
    machine(None)
    hint = "\n  = hint: set profile to cpu to train on the CPU\n"
    development = command("preflight", "-p", "gpu", "--set", "dataset.name=builtin:python-docs")
    assert (development.code, hint in development.out) == (3, True)
    assert "profile to cpu" not in command("preflight", "-p", "a100-prod").out


def test_what_was_measured_replaces_what_was_estimated(command, machine):
    slow = replace(RECORDED.rehearsal.speed, step_time_s=60.0, tokens_per_second=4_200.0)
    machine((A100,), rehearsal=lambda _: replace(RECORDED.rehearsal, speed=slow))
    report = command("preflight", "-p", "a100-prod", *JSON).json
    failed = {finding["code"]: finding["message"] for finding in report["findings"]}
    assert "250.0 minutes" in failed["CKP002"]
    assert "measured: a rehearsal on" in failed["CKP002"]
    text = command("preflight", "-p", "a100-prod").out
    assert "measured speed" in text
    assert "predicted speed" in text
    assert "headroom" in text


def test_facts_are_kept_and_judged_again(command, machine, tmp_path):
    machine((A100,))
    first = command("preflight", "-p", "a100-prod", "--save-facts", "kept.json", *JSON)
    machine(None)
    again = command("preflight", "-p", "a100-prod", "--facts", "kept.json", *JSON)
    assert checks_of(again.json) == checks_of(first.json)
    assert (first.code, again.code) == (0, 0)
    assert facts_from_json((tmp_path / "kept.json").read_text(encoding="utf-8")).gpus == (A100,)


def test_no_launch_goes_by_recorded_facts(command, machine, tmp_path):
    machine((A100,))
    command("preflight", "-p", "a100-prod", "--save-facts", "kept.json")
    answer = command("preflight", "-p", "a100-prod", "--facts", "kept.json", "--output", "replay").passed()
    assert [path.name for path in (tmp_path / "replay").iterdir()] == ["preflight.json"]
    assert "no receipt: the checks used facts recorded at 20" in answer.out
    command("train", "-p", "a100-prod", "--receipt", "replay").refused(1, "there is no receipt")


def test_what_another_run_s_rehearsal_measured_is_not_told(command, machine):
    machine((A100,))
    command("preflight", "-p", "a100-prod", "--save-facts", "kept.json")
    other = ("preflight", "-p", "a100-prod", "--facts", "kept.json", "--set", "optimizer.eps=1e-7")
    answer = command(*other)
    assert answer.code == 3
    assert "measured for another config: optimizer.eps 1e-08, now 1e-07" in answer.out
    assert "measured speed" not in answer.out
    assert checks_of(command(*other, *JSON).json)["GPU001"] == "pass"


@pytest.mark.parametrize(
    "content", [None, "", "[]", '{"schema_version": 0}', '{"schema_version": 1, "gpus": 5}']
)
def test_what_holds_no_facts_is_refused(content, command, tmp_path):
    if content is not None:
        (tmp_path / "facts.json").write_text(content, encoding="utf-8")
    command("preflight", "-p", "cpu-demo", "--facts", "facts.json").refused(2, "unreadable-facts")


def test_results_are_written_where_asked(command, tmp_path, monkeypatch):
    monkeypatch.setattr("launcher.probes.git._is_own_code_tracked", lambda code: False)
    answer = command("preflight", "-p", "cpu-demo", "--output", "results", *JSON)
    folder = tmp_path / "results"
    assert {path.name for path in folder.iterdir()} == {"preflight.json", "facts.json", "receipt.json"}
    assert json.loads((folder / "preflight.json").read_text(encoding="utf-8")) == answer.json
    receipt, digest = read_receipt(folder / "receipt.json"), answer.json["config_hash"]
    now = datetime.now(UTC)
    assert explain_mismatch(receipt, digest, now) == ()
    assert explain_mismatch(receipt, "0" * 64, now)
    assert explain_mismatch(receipt, digest, now + timedelta(hours=25)), "it covers the run for a day"
    assert (receipt.levels, receipt.verdict) == (("static", "host", "gpu"), "pass")


def test_results_have_a_place_that_version_control_never_sees(command, tmp_path):
    digest = command("preflight", "-p", "cpu-demo", *JSON).json["config_hash"]
    assert (tmp_path / ".neobert" / "preflight" / digest[:12] / "receipt.json").is_file()
    assert (tmp_path / ".neobert" / ".gitignore").read_text(encoding="utf-8") == "*\n"


@pytest.mark.parametrize("keeps_it", [True, False])
def test_a_receipt_keeps_what_was_measured(keeps_it, command, machine, tmp_path):
    """12.5 minutes of work are at risk by what was measured; by the estimate they would be 12.9."""
    limit = ("guard.max_lost_minutes=12.6", "model.num_hidden_layers=34")
    machine((A100,))
    command(
        "preflight", "-p", "a100-prod", "--set", limit[0], "--set", limit[1], "--output", "r", *JSON
    ).passed()
    kept = read_receipt(tmp_path / "r" / "receipt.json")
    assert (kept.measured["step_time_s"], kept.measured["source"]) == (
        3.0,
        "a rehearsal on NVIDIA A100-SXM4-80GB",
    )
    run = resolve_run("a100-prod", overrides=limit)
    receipt = kept if keeps_it else replace(kept, measured={})
    examination = examine(
        run, levels.JUDGED, folder=None, receipt=receipt, earlier=read_measurements(receipt)
    )
    statuses = {check["id"]: check["status"] for check in examination.report.as_json()["checks"]}
    assert (examination.facts.rehearsal, statuses["CKP002"]) == (None, "pass" if keeps_it else "fail")
    assert make_receipt(examination).measured == receipt.measured


def test_a_receipt_whose_measurement_is_none_is_refused(command, machine, tmp_path):
    command("preflight", "-p", "cpu-demo", "--output", "r")
    path = tmp_path / "r" / "receipt.json"
    receipt = json.loads(path.read_text(encoding="utf-8")) | {"measured": {"step_time_s": "fast"}}
    path.write_text(json.dumps(with_digest(receipt)), encoding="utf-8")
    command("train", "-p", "cpu-demo", "--receipt", "r").refused(1, "cannot be read")


def test_waivers_are_in_the_receipt(command, run_file, tmp_path):
    day = datetime.now(UTC).date() + timedelta(days=2)
    run_file(
        "profile: a100-prod\ntrainer:\n  save_total_limit: 1\nwaivers:\n"
        f"  - {{code: CKP003, reason: a trial of the disk quota, expires: {day}}}\n"
    )
    answer = command(
        "preflight", "-c", "run.yaml", "--level", "static", "--output", "r", "--output-format", "json"
    ).passed()
    assert [finding["waived"] for finding in answer.json["findings"]] == [True]
    (waiver,) = read_receipt(tmp_path / "r" / "receipt.json").waivers
    assert waiver == {"code": "CKP003", "reason": "a trial of the disk quota", "expires": str(day)}


@pytest.mark.parametrize("more", [(), ("--output", "taken/results")])
def test_a_place_that_takes_no_report_is_told_before_the_checks(more, command, monkeypatch):
    monkeypatch.setattr(preflight, "examine", lambda *_, **__: pytest.fail("minutes were spent"))
    Path("taken").touch()
    Path(".neobert").touch()
    command("preflight", "-p", "cpu-demo", *more).refused(1, "[not-writable]", "--output DIR")


def test_a_folder_of_results_that_can_no_longer_be_written_to(command, monkeypatch):
    monkeypatch.setattr(preflight, "examine", lambda *_, **__: pytest.fail("minutes were spent"))
    Path("results", "preflight.json").mkdir(parents=True)
    command("preflight", "-p", "cpu-demo", "--output", "results").refused(1, "Is a directory")


@pytest.mark.parametrize("columns", [80, 120])
def test_a_machine_without_a_gpu_gets_twelve_lines(columns, command, machine, monkeypatch):
    """The reasons are whole with --verbose, in the report on disk, and in JSON."""
    monkeypatch.setattr(console, "terminal_width", lambda *_: columns)
    machine(None)
    shown = command("preflight", "-p", "a100-prod").out.splitlines()
    assert shown[0] == "UNKNOWN: a required check could not run (exit 3)"
    assert len(shown) <= 12, shown
    assert all(len(line) <= columns for line in shown[:-1])
    reported = command("preflight", "-p", "a100-prod", "--verbose").out
    for decision in ("hours x GPUs", "time to the end", "work at risk", "memory per device", NO_GPU):
        assert decision in reported
