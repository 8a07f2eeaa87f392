"""A run that was rehearsed: the same command starts without another rehearsal, and only the same one."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import app
from launcher.preflight import examination, kept_receipts, levels
from launcher.probes.probe import Probe, Subject
from launcher.process import trainer_process
from neobert.receipt import sealed
from profiles.registry import ResolvedRun, resolve_run
from tests.faults import machine

pytestmark = pytest.mark.child
OUTPUT = "trainer.output_dir=run"
RUN = ("-p", "a100-prod", "--set", OUTPUT)
FAKE_TRAINER = Path(__file__).parents[1] / "launcher"
CLEAN = {"is_repository": True, "sha": "a" * 40, "is_dirty": False, "diff_sha256": "", "diff_saved": False}
HERE = {"git": CLEAN, "host.hostname": socket.gethostname()}
CHEAP, DEAR = ["imports", "inspection"], "rehearsal"
Launch = Callable[..., Any]


class Machine:
    """A machine that answers from recorded facts, and the expensive groups that it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.asked: list[str] = []
        self.warmed_up: list[Any] = []

    def be(self, **changes: Any) -> None:
        machine.become(self._monkeypatch, machine.altered(HERE | changes))
        self._monkeypatch.setattr(levels, "HEAVY_PROBES", tuple(map(self._recording, levels.HEAVY_PROBES)))

    def _recording(self, probe: Probe) -> Probe:
        def measure(subject: Subject) -> Any:
            self.asked.append(probe.group)
            return probe.measure(subject)

        return replace(probe, measure=measure)

    def take(self) -> list[str]:
        asked, self.asked = sorted(self.asked), []
        return asked


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(trainer_process, "TRAINER_MODULE", "fake_trainer")
    monkeypatch.setattr(trainer_process, "TRAINER_PACKAGES", ())
    monkeypatch.setattr(trainer_process, "COMPILER_PACKAGES", ())
    monkeypatch.setenv("PYTHONPATH", str(FAKE_TRAINER))
    monkeypatch.setenv("FAKE_TRAINER", "finish")
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
    """The receipt that a preflight of this run has kept."""
    path = kept_receipts.path_for(resolved())
    assert path is not None
    if not issued:
        code, report = launch("preflight", *RUN)
        assert code == 0, report
        assert DEAR in here.take()
        issued.append(path.read_bytes())
    path.write_bytes(issued[0])
    return path


def resolved(*more: str) -> ResolvedRun:
    return resolve_run("a100-prod", overrides=(OUTPUT, *more))


def run_again(launch: Launch, *more: str) -> None:
    shutil.rmtree("run", ignore_errors=True)
    code, ending = launch("train", *RUN, *more)
    assert code == 0, ending


def test_a_run_that_a_preflight_rehearsed_starts_at_once(
    launch: Launch, here: Machine, rehearsed: Path
) -> None:
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


def test_the_second_launch_of_a_run_starts_at_once(launch: Launch, here: Machine) -> None:
    run_again(launch)
    assert DEAR in here.take()
    run_again(launch)
    assert here.take() == CHEAP


def test_every_check_that_was_not_repeated_is_listed(
    rehearsed: Path, here: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["train", *RUN]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    created = json.loads(rehearsed.read_text(encoding="utf-8"))["created_utc"]
    reused = lines.partition("reused ")[2].partition(": measured")[0].split()
    assert {"CKP006", "NUM005", "PRE003", "SCH002", "TEL001"} <= set(reused)
    assert not {"DAT002", "HST001", "HST008", "CKP004"} & set(reused)
    shown = created.replace("T", " ")[:16]
    assert f"measured {shown} UTC; `neobert-launch preflight` measures them again" in lines


def test_the_receipt_of_an_unchanged_machine_is_found(rehearsed: Path) -> None:
    assert kept_receipts.find(resolved()) is not None


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
def test_what_has_changed_is_measured_again(change: dict[str, Any], here: Machine, rehearsed: Path) -> None:
    here.be(**change)
    assert kept_receipts.find(resolved()) is None


@pytest.mark.parametrize("more", ["seed=8", "trainer.output_dir=other"])
def test_another_run_is_measured(more: str, rehearsed: Path) -> None:
    assert kept_receipts.find(resolved(more)) is None


def test_another_text_is_rehearsed(launch: Launch, here: Machine, rehearsed: Path) -> None:
    here.be(**{"inspection.prepared.fingerprint": "d" * 64})
    run_again(launch)
    assert DEAR in here.take()


def edited(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps(sealed(content)), encoding="utf-8")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: edited(path, expires_utc="2026-01-01T00:00:00+00:00"),
        lambda path: edited(path, hostname="another"),
        lambda path: edited(path, unguarded="somebody was in a hurry"),
        lambda path: edited(path, verdict="fail"),
        lambda path: edited(path, checks=["CKP006"]),
        lambda path: path.write_text(path.read_text().replace('"pass"', '"warn"')),
        lambda path: path.write_text("{"),
        lambda path: path.parent.chmod(0o777),
    ],
    ids=["expired", "host", "unguarded", "failed", "checks", "not sealed", "no JSON", "others may write"],
)
def test_a_receipt_that_proves_nothing_is_not_used(spoil: Callable[[Path], None], rehearsed: Path) -> None:
    spoil(rehearsed)
    assert kept_receipts.find(resolved()) is None


def test_what_is_checked_again_still_stops_the_run(launch: Launch, here: Machine, rehearsed: Path) -> None:
    here.be(**{"disk.free_mib": 10})
    code, report = launch("train", *RUN)
    assert (code, here.take()) == (1, CHEAP)
    assert "CKP004" in {finding["code"] for finding in report["findings"]}


@pytest.mark.parametrize("more", [(), ("--unguarded", "the quota is raised at noon, says the site")])
def test_a_run_that_failed_a_check_keeps_no_receipt(
    more: tuple[str, ...], launch: Launch, here: Machine
) -> None:
    here.be(**{"disk.free_mib": 10})
    launch("train", *RUN, *more)
    folder = Path("cache", "neobert", "receipts")
    assert list(folder.iterdir()) == []


def test_a_preflight_measures_again_and_removes_receipts_that_no_time_limit_allows(
    launch: Launch, here: Machine, rehearsed: Path
) -> None:
    old = rehearsed.with_name("old.json")
    old.touch()
    os.utime(old, (0, time.time() - 8 * 86_400))
    launch("preflight", *RUN)
    assert DEAR in here.take()
    assert list(rehearsed.parent.iterdir()) == [rehearsed]
