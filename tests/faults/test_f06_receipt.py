"""F6: what changed after a receipt was issued. `train` refuses and names it; unchanged, it goes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neobert import __version__
from neobert.receipt import with_digest
from tests.faults import machine
from tests.faults.machine import CLEAN, RUN

pytestmark = pytest.mark.e2e
Launch = Callable[..., Any]


@pytest.fixture
def launch(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    machine.with_fake_trainer(monkeypatch, tmp_path)
    machine.become(monkeypatch, machine.altered({"git": CLEAN}))
    return machine.launch(capsys)


@pytest.fixture(scope="module")
def issued() -> dict[str, Any]:
    """The receipt of the one preflight that the tests share."""
    return {}


@pytest.fixture
def checked(launch: Launch, issued: dict[str, Any]) -> Callable[..., None]:
    """Have the receipt of a preflight in `checked`; the function writes it again, with changes."""
    path = Path("checked", "receipt.json")
    if not issued:
        code, report = launch("preflight", *RUN, "--level", "full", "--output", "checked")
        assert code in (0, 3), [finding["message"] for finding in report["findings"]]
        issued.update(json.loads(path.read_text(encoding="utf-8")))

    def write(**changes: Any) -> None:
        """Write the receipt; checks that did not run here, such as the rehearsal, count as passed."""
        path.parent.mkdir(exist_ok=True)
        content = issued | {"verdict": "pass"} | changes
        path.write_text(json.dumps(with_digest(content)), encoding="utf-8")

    write()
    return write


def refusal(launch: Launch, *more: str) -> str:
    code, report = launch("train", *RUN, "--receipt", "checked", *more)
    assert code == 1
    (finding,) = report["findings"]
    assert finding["code"] == "RCP001"
    assert not Path("run").exists()
    return str(finding["message"])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"checks": ["GPU003"]}, "the receipt"),
        ({"config": "none", "config_digest": "0" * 64}, "the receipt"),
        ({"expires_utc": "2026-01-01T00:00:00+00:00"}, "it expired at"),
        ({"verdict": "unknown"}, "its verdict is unknown, not pass"),
        ({"unguarded": "somebody was in a hurry"}, "unguarded run"),
    ],
    ids=str,
)
def test_a_receipt_that_proves_nothing(launch, checked, changes, named):
    checked(**changes)
    assert named in refusal(launch)


@pytest.mark.usefixtures("checked")
def test_control_an_unchanged_machine_starts(launch):
    code, ending = launch("train", *RUN, "--receipt", "checked")
    assert code == 0, ending
    receipt = json.loads(Path("run", "receipt.json").read_text(encoding="utf-8"))
    assert {"static", "host", "gpu", "distributed", "data"} <= set(receipt["levels"])
    assert {"GPU003", "GPU008", "NUM006"} <= {check["id"] for check in receipt["checks"]}
    assert receipt["gpu_uuids"] == ["GPU-0"]
    assert json.loads(Path("run", "manifest.json").read_text(encoding="utf-8"))["unguarded"] is None


@pytest.mark.usefixtures("checked")
def test_an_edited_config(launch):
    output = refusal(launch, "--set", "trainer.max_steps=99999")
    assert "trainer.max_steps was 50000 and is 99999" in output
    assert "seed" not in output


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"git": CLEAN | {"sha": "b" * 40}},
         f"the code was {__version__}+aaaaaaaaaaaa and is {__version__}+bbbbbbbbbbbb"),
        ({"git": CLEAN, "gpus.0.uuid": "GPU-9"}, "the set of GPUs was GPU-0 and is GPU-9"),
        ({"git": CLEAN, "software.pinned": {"torch": "2.13.0"}}, "the digest of pinned versions was"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("checked")
def test_a_changed_machine(launch, changes, named, monkeypatch):
    machine.become(monkeypatch, machine.altered(changes))
    assert named in refusal(launch)


@pytest.mark.usefixtures("checked")
def test_what_is_judged_anew_still_stops_the_run(launch, monkeypatch):
    machine.become(monkeypatch, machine.altered({"git": CLEAN, "disk.free_mib": 10}))
    code, report = launch("train", *RUN, "--receipt", "checked")
    assert code == 1
    assert "CKP004" in {finding["code"] for finding in report["findings"]}


def test_unguarded_starts_and_is_recorded(launch, monkeypatch):
    machine.become(monkeypatch, machine.altered({"git": CLEAN, "disk.free_mib": 10}))
    reason = "the quota is raised at noon, says the site"
    code, _ = launch("train", *RUN, "--unguarded", reason)
    assert code == 0
    for name in ("manifest.json", "receipt.json"):
        assert json.loads(Path("run", name).read_text(encoding="utf-8"))["unguarded"] == reason
    assert json.loads(Path("run", "receipt.json").read_text(encoding="utf-8"))["verdict"] == "fail"


@pytest.mark.parametrize("reason", ["because", " " * 20, "\u200b" * 20])
def test_unguarded_needs_a_reason(reason, launch):
    code, report = launch("train", *RUN, "--unguarded", reason)
    assert code == 2
    assert report["findings"][0]["code"] == "unguarded-without-reason"
    assert not Path("run").exists()
