"""A run that was rehearsed: the same command starts without another rehearsal, and only the same one."""

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import app
from launcher.preflight import examination, kept_receipts, levels, rehearsal_inputs
from launcher.preflight.receipts import Examination
from launcher.probes.probe import Probe, Subject
from neobert.clock import seconds_since_boot
from neobert.receipt import Receipt, with_digest
from profiles.registry import ResolvedRun, resolve_run
from tests.faults import machine
from tests.faults.machine import CLEAN, RUN

pytestmark = pytest.mark.child
OUTPUT = "trainer.output_dir=run"
HERE = {"git": CLEAN, "host.hostname": socket.gethostname(), "imports.loaded": "e" * 64}
CHEAP, DEAR = ["imports", "inspection"], "rehearsal"
Launch = Callable[..., Any]


class Machine:
    """A machine that answers from recorded facts, and the expensive groups that it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.requested: list[str] = []
        self.warmed_up: list[Any] = []

    def be(self, **changes: Any) -> None:
        machine.become(self._monkeypatch, machine.altered(HERE | changes))
        self._monkeypatch.setattr(levels, "HEAVY_PROBES", tuple(map(self._recording, levels.HEAVY_PROBES)))

    def _recording(self, probe: Probe) -> Probe:
        def measure(subject: Subject) -> Any:
            self.requested.append(probe.group)
            return probe.measure(subject)

        return replace(probe, measure=measure)

    def take(self) -> list[str]:
        requested, self.requested = sorted(self.requested), []
        return requested


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    machine.with_fake_trainer(monkeypatch, tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ignored = rehearsal_inputs.TERMINAL_AND_JOB | {"PYTEST_CURRENT_TEST"}
    monkeypatch.setattr(rehearsal_inputs, "TERMINAL_AND_JOB", ignored)
    made = Machine(monkeypatch)
    monkeypatch.setattr(examination, "warm_up", lambda *arguments: made.warmed_up.append(arguments))
    made.be()
    return made


@pytest.fixture
def launch(capsys: Any, here: Machine) -> Launch:
    return machine.launch(capsys)


@pytest.fixture(scope="module")
def issued() -> list[bytes]:
    """The receipt of the one preflight that the tests share."""
    return []


@pytest.fixture
def rehearsed(launch: Launch, here: Machine, issued: list[bytes]) -> Path:
    """The receipt that a preflight of this run has kept, as if in the folder and environment of the test."""
    path = kept_receipts.receipt_path(resolved())
    assert path is not None
    if not issued:
        code, report = launch("preflight", *RUN)
        assert code == 0, report
        assert DEAR in here.take()
        issued.append(path.read_bytes())
    path.write_bytes(issued[0])
    path.chmod(kept_receipts.OWN)
    kept = json.loads(issued[0])["inputs"]
    edited(path, inputs=kept | rehearsal_inputs.rehearsal_inputs(resolved()))
    return path


def found(*more: str) -> Receipt | None:
    run = resolved(*more)
    return kept_receipts.find_receipt(run, rehearsal_inputs.rehearsal_inputs(run))


def resolved(*more: str) -> ResolvedRun:
    return resolve_run("a100-prod", overrides=(OUTPUT, *more))


def run_again(launch: Launch, *more: str) -> None:
    shutil.rmtree("run", ignore_errors=True)
    code, ending = launch("train", *RUN, *more)
    assert code == 0, ending


def test_a_run_that_a_preflight_rehearsed_starts_at_once(launch, here, rehearsed):
    before = rehearsed.read_bytes()
    assert here.warmed_up == []
    for number in range(2):
        run_again(launch)
        assert here.take() == CHEAP
        assert len(here.warmed_up) == number + 1, "the trainer compiles while the text is inspected"
    receipt = json.loads(Path("run", "receipt.json").read_text(encoding="utf-8"))
    earlier = json.loads(before)
    assert receipt["verdict"] == "pass"
    assert {each["id"] for each in receipt["checks"]} == {each["id"] for each in earlier["checks"]}
    assert receipt["measured"] == earlier["measured"]
    assert rehearsed.read_bytes() == before, "its time limit counts from the measurement"


def test_the_second_launch_of_a_run_starts_at_once(launch, here):
    run_again(launch)
    assert DEAR in here.take()
    run_again(launch)
    assert here.take() == CHEAP


def test_every_check_that_was_not_repeated_is_listed(rehearsed, here, capsys):
    assert app.run(["train", *RUN]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    created = json.loads(rehearsed.read_text(encoding="utf-8"))["created_utc"]
    reused = lines.partition("reused ")[2].partition(": measured")[0].split()
    assert {"CKP006", "NUM005", "PRE003", "SCH002", "TEL001"} <= set(reused)
    assert not {"DAT002", "HST001", "HST008", "CKP004"} & set(reused)
    shown = created.replace("T", " ")[:16]
    assert f"measured {shown} UTC; `neobert-launch preflight` measures them again" in lines


def test_the_receipt_of_an_unchanged_machine_is_found(rehearsed):
    assert found() is not None


@pytest.mark.parametrize(
    "change",
    [
        {"git": CLEAN | {"sha": "b" * 40}},
        {"git": CLEAN | {"is_dirty": True, "diff_sha256": "c" * 64, "diff_saved": True}},
        {"gpus.0.driver_version": "590.00"},
        {"gpus.0.uuid": "GPU-9"},
        {"software.packages.torch": "2.13.1"},
        {"software.python": "3.12.5"},
    ],
    ids=str,
)
def test_what_has_changed_is_measured_again(change, here, rehearsed):
    here.be(**change)
    assert found() is None


@pytest.mark.parametrize("more", ["seed=8", "trainer.output_dir=other"])
def test_another_run_is_measured(more, rehearsed):
    assert found(more) is None


def test_another_text_is_rehearsed(launch, here, rehearsed):
    here.be(**{"inspection.prepared.fingerprint": "d" * 64})
    run_again(launch)
    assert DEAR in here.take()


def edited(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps(with_digest(content)), encoding="utf-8")


SPOILED: dict[str, Callable[[Path], object]] = {
    "expired": lambda path: edited(path, expires_utc="2026-01-01T00:00:00+00:00"),
    "host": lambda path: edited(path, hostname="another"),
    "unguarded": lambda path: edited(path, unguarded="somebody was in a hurry"),
    "failed": lambda path: edited(path, verdict="fail"),
    "checks": lambda path: edited(path, checks=["CKP006"]),
    "no inputs": lambda path: edited(path, inputs={}),
    "repeats another": lambda path: edited(path, measured_utc="2026-01-01T00:00:00+00:00"),
    "after now": lambda path: edited(path, issued_boot_s=seconds_since_boot() + 60),
    "clock set back": lambda path: edited(path, issued_boot_s=seconds_since_boot() - 24 * 3600),
    "no time": lambda path: edited(path, issued_boot_s="then"),
    "not sealed": lambda path: path.write_text(path.read_text().replace('"pass"', '"warn"')),
    "no JSON": lambda path: path.write_text("{"),
    "others may write": lambda path: path.parent.chmod(0o777),
    "others may write the file": lambda path: path.chmod(0o660),
    "linked": lambda path: path.with_name("other").hardlink_to(path),
    "a link": lambda path: path.symlink_to(path.rename(path.with_name("other"))),
    "gone": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_receipt_that_proves_nothing_is_not_used(how, rehearsed):
    SPOILED[how](rehearsed)
    assert found() is None


@pytest.mark.parametrize(
    ("age_s", "is_used"), [(-0.5, False), (0, True), (24 * 3600 - 1, True), (24 * 3600, False)]
)
def test_a_receipt_is_used_until_its_time_on_the_clock_of_the_boot(age_s, is_used, rehearsed, monkeypatch):
    edited(rehearsed, issued_boot_s=1000.0)
    monkeypatch.setattr(kept_receipts, "seconds_since_boot", lambda: 1000.0 + age_s)
    assert (found() is not None) == is_used


def test_nothing_is_found_where_nothing_can_be_compared_or_kept(rehearsed, monkeypatch):
    edited(rehearsed, inputs={})
    assert kept_receipts.find_receipt(resolved(), {}) is None
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    assert found() is None


def test_only_the_user_can_read_a_kept_receipt(launch, rehearsed):
    rehearsed.unlink()
    before = os.umask(0)
    try:
        launch("preflight", *RUN)
    finally:
        os.umask(before)
    assert rehearsed.stat().st_mode & 0o777 == 0o600


NO_REHEARSED_PASS: dict[str, Callable[[Examination], Examination]] = {
    "not rehearsed": lambda one: replace(one, facts=replace(one.facts, rehearsal=None)),
    "not imported": lambda one: replace(one, facts=replace(one.facts, imports=None)),
    "reused": lambda one: replace(one, reused=("CKP006",)),
    "unguarded": lambda one: replace(one, unguarded="somebody was in a hurry"),
    "unknown": lambda one: replace(one, report=one.report._replace(exit_code=3)),
}


def test_only_a_pass_that_was_rehearsed_here_is_kept(launch, rehearsed, monkeypatch):
    seen: list[tuple[Examination, Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(kept_receipts, "store_receipt", lambda *arguments: seen.append(arguments))
        launch("preflight", *RUN)
    ((made, inputs),) = seen
    rehearsed.unlink()
    for name, change in NO_REHEARSED_PASS.items():
        kept_receipts.store_receipt(change(made), inputs)
        assert not rehearsed.exists(), name
    kept_receipts.store_receipt(made, {})
    assert not rehearsed.exists()
    kept_receipts.store_receipt(made, inputs)
    assert rehearsed.exists()


def test_other_installed_files_are_rehearsed(launch, here, rehearsed):
    here.be(**{"imports.loaded": "f" * 64})
    run_again(launch)
    assert DEAR in here.take()
    run_again(launch)
    assert here.take() == CHEAP, "the receipt of the last rehearsal is kept"


@pytest.mark.parametrize("group", ["imports", "inspection", "disk"])
def test_a_check_that_gives_no_answer_today_is_not_taken_from_the_receipt(group, launch, here, rehearsed):
    here.be(**{group: None})
    code, report = launch("train", *RUN)
    assert code == 3
    unknown = {check["id"] for check in report["checks"] if check["status"] == "unknown"}
    assert {"imports": "HST008", "inspection": "DAT002", "disk": "CKP004"}[group] in unknown


def warned(path: Path, message: str) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    for check in content["checks"]:
        if check["id"] == "SCH002":
            check |= {"status": "warn", "message": message}
    edited(path, checks=content["checks"])


def test_a_warning_of_the_rehearsal_is_shown_again_and_blocks_a_strict_launch(launch, here, rehearsed):
    warned(rehearsed, "slower than expected")
    code, report = launch("train", *RUN, "--strict")
    assert code == 1
    assert [(each["code"], each["message"]) for each in report["findings"]] == [
        ("SCH002", "slower than expected")
    ]
    run_again(launch)
    assert here.take() == sorted(CHEAP * 2)
    stored = json.loads(Path("run", "preflight.json").read_text(encoding="utf-8"))
    assert [each["code"] for each in stored["findings"]] == ["SCH002"]


def test_a_waived_warning_of_the_rehearsal_blocks_nothing(launch, rehearsed):
    warned(rehearsed, "waived: the site knows (until 2099-01-01)")
    run_again(launch, "--strict")


def test_what_is_edited_during_a_rehearsal_keeps_no_receipt(launch, here, rehearsed, monkeypatch):
    rehearsed.unlink()
    before = rehearsal_inputs.rehearsal_inputs(resolved())
    monkeypatch.setattr(kept_receipts, "rehearsal_inputs", lambda _: before | {"code": "another"})
    run_again(launch)
    assert not rehearsed.exists()


def test_a_receipt_that_repeats_checks_is_no_younger_than_they_are(launch, rehearsed):
    created = datetime.now(UTC) - timedelta(hours=23)
    edited(rehearsed, created_utc=created.isoformat())
    run_again(launch)
    repeated = json.loads(Path("run", "receipt.json").read_text(encoding="utf-8"))
    assert repeated["measured_utc"] == created.isoformat()
    Path("run", "receipt.json").rename("repeated.json")
    run_again(launch, "--receipt", "repeated.json")
    again = json.loads(Path("run", "receipt.json").read_text(encoding="utf-8"))
    assert again["measured_utc"] == created.isoformat(), "repeated twice, measured once"
    edited(Path("repeated.json"), measured_utc=(created - timedelta(minutes=61)).isoformat())
    shutil.rmtree("run")
    code, report = launch("train", *RUN, "--receipt", "repeated.json")
    assert code == 1
    assert "have expired" in report["findings"][0]["message"]


def test_what_is_checked_again_still_stops_the_run(launch, here, rehearsed):
    here.be(**{"disk.free_mib": 10})
    code, report = launch("train", *RUN)
    assert (code, here.take()) == (1, CHEAP)
    assert len(here.warmed_up) == 1, "the trainer was compiling"
    assert not Path("run").exists(), "it trained"
    assert "CKP004" in {finding["code"] for finding in report["findings"]}


@pytest.mark.parametrize("more", [(), ("--unguarded", "the quota is raised at noon, says the site")])
def test_a_run_that_failed_a_check_keeps_no_receipt(more, launch, here):
    here.be(**{"disk.free_mib": 10})
    launch("train", *RUN, *more)
    folder = Path("cache", "neobert", "receipts")
    assert list(folder.iterdir()) == []


def test_a_preflight_measures_again_and_removes_receipts_that_no_time_limit_allows(launch, here, rehearsed):
    young, old = rehearsed.with_name("young.json"), rehearsed.with_name("old.json")
    for path, hours in ((young, 167.5), (old, 168.5)):
        path.touch()
        os.utime(path, (0, time.time() - hours * 3600))
    rehearsed.with_name("damaged.json").symlink_to("nowhere")
    launch("preflight", *RUN)
    assert DEAR in here.take()
    assert {path.stem for path in rehearsed.parent.iterdir()} == {rehearsed.stem, "young", "damaged"}
