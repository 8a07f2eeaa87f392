"""F9: a flash kernel that is missing, or does not import, stops the run; nothing slower takes its place."""

from pathlib import Path
from typing import Any

import pytest

from launcher.probes import trials
from launcher.probes.trials import probe_imports
from tests.faults import machine

BROKEN = 'raise ImportError("undefined symbol: _ZN3c104cuda9SetDeviceEa")\n'
FLASH = ("--set", "model.attn_backend=flash_attn_varlen")
ASKED = ("preflight", "-p", "a100-prod", *FLASH, "--level", "host,gpu", "--output", "out")


def failed(report: Any) -> set[str]:
    return {check["id"] for check in report["checks"] if check["status"] == "fail"}


def test_not_installed(ask, monkeypatch):
    machine.become(monkeypatch, machine.altered({}))
    code, report = ask(*ASKED)
    assert (code, failed(report)) == (0, set())
    packages = {name: v for name, v in machine.altered({}).software.packages.items() if "flash" not in name}
    machine.become(monkeypatch, machine.altered({"software.packages": packages}))
    code, report = ask(*ASKED)
    assert (code, failed(report)) == (1, {"ATT001"})


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_it_does_not_import(ask, tmp_path, monkeypatch, subject_here):
    package = tmp_path / "modules" / "flash_attn"
    package.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setattr(trials, "find_spec", lambda name: name == "flash_attn" or None)
    (package / "__init__.py").write_text("", encoding="utf-8")
    assert probe_imports(subject_here).failed == {}
    (package / "__init__.py").write_text(BROKEN, encoding="utf-8")
    failed_imports = probe_imports(subject_here).failed
    assert failed_imports == {"flash_attn": f"ImportError: {BROKEN.split(chr(34))[1]}"}

    machine.become(monkeypatch, machine.altered({"imports.failed": failed_imports}))
    code, report = ask(*ASKED)
    assert (code, failed(report)) == (1, {"HST008"})


@pytest.fixture
def subject_here(tmp_path: Path) -> Any:
    from launcher.probes.probe import Subject
    from neobert.config.schema import RunConfig

    return Subject(RunConfig(), tmp_path / "run", tmp_path)
