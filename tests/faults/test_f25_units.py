"""F25: 21,504 MiB are 21.00 GiB wherever they are told, and memory that is in use already stops the run."""

from launcher.terminal.values import show_mib
from tests.faults import machine

ASKED = ("preflight", "-p", "a100-prod", "--level", "gpu", "--output", "out")


def test_the_incident_s_figures():
    assert show_mib(21_504) == "21.0 GiB"


def test_memory_that_is_in_use_already(ask, monkeypatch):
    machine.become(monkeypatch, machine.altered({"gpus.0.memory_used_mib": 21_504}))
    code, report = ask(*ASKED)
    assert code == 1
    (finding,) = [finding for finding in report["findings"] if finding["code"] == "GPU002"]
    assert "21,504 of 81,920 MiB are already in use" in finding["message"]
    machine.become(monkeypatch, machine.altered({}))
    assert ask(*ASKED)[0] == 0
