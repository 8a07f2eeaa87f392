"""`bench`: which differences it takes, what it says, and two real arms on this CPU."""

import json
from typing import Any

import pytest

from launcher.commands import bench
from neobert.errors import EXIT_OK, EXIT_USAGE

TINY = [
    "model.hidden_size=32", "model.num_attention_heads=2", "model.intermediate_size=64",
    "model.num_hidden_layers=1", "trainer.logging_steps=2",
    "tokenizer.vocab_size=512", "trainer.per_device_train_batch_size=2",
]  # fmt: skip
JSON = ("--output-format", "json")


def settings(values: list[str], flag: str = "--set") -> list[str]:
    return [word for value in values for word in (flag, value)]


DEMO = ("bench", "--profile", "cpu-demo", *settings(TINY))


def pretended(request: dict[str, Any]) -> dict[str, Any]:
    arm = {
        "tokens_per_second": 1234.5, "step_ms": 8.0, "mfu_of_measured_peak": 0.5, "mfu_of_nominal_peak": None,
        "means": {"perf/data_wait_share": 0.01, "perf/host_bound_share": 0.75},
    }  # fmt: skip
    is_pair = len(request["arms"]) > 1
    comparison = {"ratio": 0.5, "low": 0.4, "high": 0.6, "coverage": 0.97, "verdict": "b is slower"}
    return {
        "kind": "neobert-bench",
        "version": 1,
        "device": "a card",
        "settings": {"rounds": request["rounds"], "trim": 50, "steps_per_turn": 25, "data": request["data"]},
        "arms": dict.fromkeys(request["arms"], arm),
        "differences": request["differences"],
        "comparison": comparison if is_pair else None,
        "baseline": None,
    }


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the harness would have been asked for; it is not."""
    requests: list[dict[str, Any]] = []

    def report_of(module: str, content: dict[str, Any], *, doing: str, hint: str) -> dict[str, Any]:
        requests.append(json.loads(json.dumps(content)))
        return pretended(requests[-1])

    monkeypatch.setattr(bench, "run_json_child", report_of)
    return requests


def test_one_arm_is_measured_alone(command, requested):
    answer = command(*DEMO, "--steps", "60", "--trim", "12", "--rounds", "3", "--data", "own")
    assert answer.code == EXIT_OK
    request = requested[0]
    assert list(request["arms"]) == ["a"]
    assert [request[name] for name in ("steps", "trim", "rounds", "data")] == [60, 12, 3, "own"]
    assert request["arms"]["a"]["model"]["hidden_size"] == 32
    assert all(figure in answer.out for figure in ("1,234", "8.00", "1.0%", "75.0%", "50.0%"))
    assert "b is" not in answer.out


def test_overrides_of_b_are_named_differences(command, requested):
    answer = command(*DEMO, "--b-set", "model.num_hidden_layers=3", "--trainer.max_steps", "99")
    assert requested[0]["differences"] == {"model.num_hidden_layers": [1, 3]}
    assert [arm["trainer"]["max_steps"] for arm in requested[0]["arms"].values()] == [99, 99]
    assert len(set(requested[0]["digests"].values())) == 2
    assert "b differs in model.num_hidden_layers: 1 -> 3" in answer.out
    assert "b is slower: 0.5000 times" in answer.out


def test_profiles_that_differ_are_refused_by_key(command, requested):
    answer = command(*DEMO, "--against", "gpu-smoke", "--differing", "model,trainer")
    assert answer.code == EXIT_USAGE
    assert not requested
    assert "dataset.max_seq_length: 128 and 512; " in answer.err
    assert "model.attn_backend" not in answer.err
    sections = "model,trainer,dataset,datacollator,optimizer,scheduler"
    assert command(*DEMO, "--against", "gpu-smoke", "--differing", sections).code == EXIT_OK
    assert "optimizer.name" in requested[0]["differences"]


def test_a_run_file_may_be_the_second_arm(command, run_file, requested):
    file = run_file("profile: cpu-demo\ntrainer:\n  output_dir: elsewhere\n  gradient_clipping: null\n")
    assert command(*DEMO, "--against", file).code == EXIT_USAGE
    assert command(*DEMO, "--against", file, "--differing", "trainer.gradient_clipping").code == EXIT_OK
    assert requested[0]["differences"] == {"trainer.gradient_clipping": [1.0, None]}


def test_equal_arms_may_be_compared_on_purpose_only(command, requested):
    answer = command(*DEMO, "--b-set", "model.num_hidden_layers=1")
    assert (answer.code, requested) == (EXIT_USAGE, [])
    assert "changes nothing" in answer.err
    answer = command(*DEMO, "--against", "cpu-demo")
    assert answer.code == EXIT_OK
    assert "b differs in nothing" in answer.out


def test_a_rule_that_fails_is_told_and_stops_nothing(command, requested):
    answer = command("bench", "-p", "h200-prod", "--set", "trainer.save_steps=0", *JSON).passed()
    assert "CKP001" in answer.err
    assert answer.json["arms"].keys() == {"a"}


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--profile", "2xa100-prod"], "2 x 1 processes"),
        (["--profile", "cpu-demo", "--steps", "40"], "minus --trim 50 is less than --rounds"),
        (["--profile", "cpu-demo", "--b-set", "model.nonsense=1"], "model.nonsense"),
        (["--profile", "cpu-demo", "--baseline", "missing.json"], "not a report of"),
        ([], "no profile or run file is given"),
    ],
)
def test_what_cannot_be_measured_is_refused(command, requested, words, reported):
    answer = command("bench", *words)
    assert (answer.code, requested) == (EXIT_USAGE, [])
    assert reported in answer.err


@pytest.mark.parametrize("name", ["missing/report.json", "."])
def test_a_report_that_cannot_be_kept_is_refused_before_it_is_measured(command, requested, tmp_path, name):
    answer = command(*DEMO, "--output", tmp_path / name, *JSON)
    assert answer.code == 1
    (finding,) = answer.json["findings"]
    assert finding["code"] == "not-writable"
    hint = "create its folder: mkdir -p " if "missing" in name else "choose another folder"
    assert finding["hint"].startswith(hint)
    assert not requested


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "neobert-bench", "version": 9}'])
def test_a_baseline_that_is_no_report_is_refused(command, tmp_path, text):
    path = tmp_path / "baseline.json"
    path.write_text(text, encoding="utf-8")
    assert command(*DEMO, "--baseline", path).code == EXIT_USAGE


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_two_real_arms_and_a_planted_slowdown(run_child, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    kept = tmp_path / "report.json"
    slow = settings(["model.num_hidden_layers=16", "trainer.timing_breakdown=true"], "--b-set")
    answer = run_child(*DEMO, *slow, "--steps", "16", "--trim", "4", "--output", kept, *JSON)
    assert answer.code == EXIT_OK
    report = answer.json
    assert report == json.loads(kept.read_text(encoding="utf-8"))
    # The median: of six rounds, one that another process slows down is in the interval.
    assert report["comparison"]["ratio"] < 0.8
    assert set(report["differences"]) == {"model.num_hidden_layers", "trainer.timing_breakdown"}
    a, b = report["arms"]["a"], report["arms"]["b"]
    assert a["data_fingerprint"] == b["data_fingerprint"]
    assert [turn["tokens"] for turn in a["turns"]] == [turn["tokens"] for turn in b["turns"]]
    assert all(turn["flops"] < other["flops"] for turn, other in zip(a["turns"], b["turns"], strict=True))
    assert 0 < a["mfu_of_measured_peak"] < 1
    assert (a["mfu_of_nominal_peak"], a["parts_of_step"]) == (None, None)
    assert 0.5 < b["parts_of_step"] < 1.01
    assert "round 6 of 6" in answer.err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [kept]


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_an_arm_that_cannot_be_built_says_why(run_child):
    broken = ("--b-set", "model.attn_backend=flash_attn_varlen", "--steps", "16", "--trim", "4")
    answer = run_child(*DEMO, *broken).refused(1, "arm b", "ATT001")
    assert "Traceback" not in answer.err
    assert answer.out == ""
