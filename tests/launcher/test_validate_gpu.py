"""`validate-gpu`: from what the children say to a verdict, and the real suite on a CPU."""

import copy
import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from launcher.commands import validate_gpu
from launcher.probes import ranks, trials
from launcher.probes.probe import IncompleteError, TimedOutError, UnsupportedError
from tests.faults.machine import HEALTHY
from tests.launcher.test_preflight import A100
from validators.facts_io import facts_from_json

RECORDED = json.loads(HEALTHY.read_text(encoding="utf-8"))
SMALL = """
profile: cpu-demo
model: {hidden_size: 32, num_attention_heads: 2, num_hidden_layers: 2, intermediate_size: 48}
tokenizer: {vocab_size: 512}
"""


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the children answer; a GPU is there."""
    output = {"numerics": copy.deepcopy(RECORDED["numerics"]), "devices": copy.deepcopy(RECORDED["devices"])}

    def measure(module: tuple[str, ...], limit_s: float, waiting: Any = ()) -> dict[str, Any]:
        return {"unsupported": output.get("unsupported", ""), **output}

    monkeypatch.setattr(trials, "_run_probe_module", measure)
    monkeypatch.setattr(trials, "probe_gpus", lambda: (A100,))
    monkeypatch.setattr(validate_gpu, "probe_gpus", lambda: (A100,))
    monkeypatch.setattr(validate_gpu, "probe_gpu_health", lambda: ())
    return output


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {check["id"]: check["status"] for check in report["checks"] if check["id"] != "ATT001"}


@pytest.mark.parametrize(("output_format"), ["text", "json"])
def test_a_leak_fails_in_every_format(command, answer, output_format):
    answer["numerics"]["paths"][0]["probes"]["isolation"]["leaked_tokens"] = 1
    output = command("validate-gpu", "-p", "a100-prod", "--output-format", output_format)
    assert output.code == 1
    assert "NUM001" in output.out


def test_a_fault_that_no_probe_sees_fails(command, answer):
    blind = answer["numerics"]["paths"][0]["mutants"][0]["probes"]["isolation"]
    blind |= {"leaked_tokens": 0, "largest_leak": 0.0}
    output = command("validate-gpu", "-p", "a100-prod")
    assert output.code == 1
    assert "mutants killed 5/6" in output.out
    assert "missed a planted fault" in output.out


def test_the_numbers_are_shown_with_their_path(command, answer):
    out = command("validate-gpu", "-p", "a100-prod").out
    assert "NVIDIA A100-SXM4-80GB, bfloat16: 3,072 tokens, 11 segments of 1 to 1,024" in out
    assert "torch, torch_varlen" in out
    assert "24/24 known products correct" in out
    assert "mutants killed 6/6" in out


def test_ranks_that_would_train_together_are_held_to_each_other(command, answer, monkeypatch):
    output = facts_from_json(json.dumps(RECORDED)).distributed
    assert output is not None
    wrong = replace(output, collectives=(replace(output.collectives[0], wrong_at=(1,), wrong_from=(1,)),))
    words = ("validate-gpu", "-p", "a100-prod", "--output-format", "json")
    for found, status in ((output, "pass"), (wrong, "fail")):
        monkeypatch.setattr(ranks, "probe_distributed", lambda _, found=found: found)
        judged = statuses(command(*words, "--set", "distributed.nproc_per_node=2").json)
        assert judged["DST002"] == status
    assert "DST002" not in statuses(command(*words).json)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TimedOutError("no answer within 85 s"), "timeout"),
        (IncompleteError("CUDA error: an illegal memory access"), "incomplete"),
        (UnsupportedError("torch finds no CUDA device"), "unsupported"),
    ],
)
def test_a_child_that_does_not_answer_is_unknown(command, answer, monkeypatch, error, status):
    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(trials, "_run_probe_module", fails)
    output = command("validate-gpu", "-p", "a100-prod", "--output-format", "json")
    # Where the profile's attention kernel is not installed, that is a failure of its own.
    is_missing = "ATT001" in {finding["code"] for finding in output.json["findings"]}
    assert output.code == (1 if is_missing else 3)
    assert set(statuses(output.json).values()) == {"unknown"}
    assert f"{status}: {error}" in output.out


def test_an_answer_that_makes_no_sense_is_unknown(command, answer):
    answer["numerics"]["paths"][0]["probes"]["isolation"]["leaked_tokens"] = "none"
    output = command("validate-gpu", "-p", "a100-prod", "--output-format", "json")
    assert statuses(output.json)["NUM001"] == "unknown"
    assert "report is invalid" in output.out


@pytest.mark.parametrize("name", ["validate-gpu", "preflight"])
def test_facts_that_cannot_be_kept_are_refused_before_they_are_measured(command, monkeypatch, name):
    measured = (
        "launcher.preflight.examination.collect"
        if name == "preflight"
        else f"{validate_gpu.__name__}.collect"
    )
    monkeypatch.setattr(measured, lambda *_: pytest.fail("something was measured"))
    reported = command(
        name, "-p", "cpu-demo", "--save-facts", "missing/facts.json", "--output-format", "json"
    )
    assert (reported.code, reported.json["findings"][0]["code"]) == (1, "not-writable")


@pytest.mark.child
def test_a_hanging_child_is_killed_in_time(command, monkeypatch):
    monkeypatch.setattr(trials, "PYTHON", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(trials, "NUMERICS_S", 0.3)
    output = command("validate-gpu", "-p", "cpu-demo", "--output-format", "json")
    assert output.code == 3
    assert "did not respond within 0.3 s" in output.out


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_the_attention_of_a_transformers_model_is_tested(run_child, tmp_path):
    model = "{type: hf, architecture: modernbert, hidden_size: 32, num_hidden_layers: 2, "
    model += "num_attention_heads: 2, intermediate_size: 48}"
    (tmp_path / "run.yaml").write_text(f"profile: cpu-demo\nmodel: {model}\n", encoding="utf-8")
    found = run_child("validate-gpu", "-c", tmp_path / "run.yaml").passed()
    for kind in ("isolation", "bidirectional", "equality", "positions"):
        assert kind in found.out
    assert "NUM002  pass" in found.out
    assert "mutants" not in found.out


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_the_real_suite_passes_on_a_cpu(run_child, tmp_path):
    (tmp_path / "run.yaml").write_text(SMALL, encoding="utf-8")
    output = run_child("validate-gpu", "-c", tmp_path / "run.yaml", "--output-format", "json")
    assert (output.code, output.json["verdict"]) == (0, "pass")
    assert {code: status for code, status in statuses(output.json).items() if code.startswith("NUM")} == {
        "NUM001": "pass", "NUM002": "pass", "NUM003": "pass", "NUM004": "pass",
    }  # fmt: skip
    mutants = output.json["mutants"]
    assert mutants["killed"] == mutants["planted"] >= 12
