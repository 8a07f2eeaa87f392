"""`bench speedrun`: its rules, its test, and its record."""

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launcher.commands.speedrun import (
    SHARED,
    _code_diff_sha256,
    _find_objections,
    _shared_value,
    p_value_below,
    student_t_cdf,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = "\n\n".join(f"document {number} speaks of {number % 7} things" for number in range(300))
RECIPE = {
    "profile": "cpu-demo",
    "model": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
    "scheduler": {"warmup_steps": 1},
    "trainer": {
        "output_dir": "run", "max_steps": 8, "eval_steps": 4, "save_steps": 0, "logging_steps": 2,
        "per_device_train_batch_size": 2,
    },
}  # fmt: skip
FIXED: dict[str, dict[str, Any]] = {
    "dataset": {"path": "text.txt", "max_seq_length": 32, "eval_samples": 20},
    "tokenizer": {"vocab_size": 256},
    "datacollator": {"mlm_probability_eval": 0.15},
    "trainer": {"eval_max_batches": None},
}
URL = "https://example.org/text.txt"


def integral(t: float, degrees: int) -> float:
    """P(T <= t) by Simpson's rule over the density, far from its tails' end."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    count, low = 4000, 0.0
    width = (t - low) / count
    values = [
        scale * (1 + (low + i * width) ** 2 / degrees) ** (-(degrees + 1) / 2) * (1, 4, 2)[_weight(i, count)]
        for i in range(count + 1)
    ]
    return 0.5 + sum(values) * width / 3


def _weight(place: int, count: int) -> int:
    return 0 if place in (0, count) else 1 if place % 2 else 2


@given(st.floats(-12, 12), st.integers(1, 40))
def test_the_distribution_is_the_integral_of_its_density(t, degrees):
    assert student_t_cdf(t, degrees) == pytest.approx(integral(t, degrees), abs=1e-9)


def test_a_mean_below_the_limit_is_not_enough():
    assert p_value_below([3.30, 3.27, 3.28], 3.3) > 0.05
    assert p_value_below([3.29, 3.28, 3.285], 3.3) < 0.05
    assert (p_value_below([1.0, 1.0], 2.0), p_value_below([2.0, 2.0], 2.0)) == (0.0, 1.0)


@pytest.fixture
def write() -> Callable[..., Path]:
    """Write text, recipe and rule file of a tiny speedrun; keywords replace entries of the rules."""

    def rules(recipe: dict[str, Any] | None = None, **entries: Any) -> Path:
        Path("text.txt").write_text(TEXT, encoding="utf-8")
        Path("recipe.yaml").write_text(yaml.safe_dump(recipe or RECIPE), encoding="utf-8")
        digest = hashlib.sha256(TEXT.encode()).hexdigest()
        content: dict[str, Any] = {
            "name": "tiny",
            "target_loss": 20.0,
            "seeds": [3, 4],
            "run": "recipe.yaml",
            "sources": [{"url": URL, "path": "text.txt", "sha256": digest}],
            "fixed": FIXED,
        }
        kept = {name: value for name, value in {**content, **entries}.items() if value is not None}
        Path("rules.yaml").write_text(yaml.safe_dump(kept), encoding="utf-8")
        return Path("rules.yaml")

    return rules


def fixed_without(section: str, name: str) -> dict[str, Any]:
    return {**FIXED, section: {key: value for key, value in FIXED[section].items() if key != name}}


WRONG: dict[str, tuple[dict[str, Any], int, str]] = {
    "another text": (
        {"sources": [{"url": URL, "path": "text.txt", "sha256": "0" * 64}]}, 1, "text.txt has SHA-256",
    ),
    "no text": (
        {"sources": [{"url": URL, "path": "far.txt", "sha256": "0" * 64}]}, 1, f"download {URL} to /",
    ),
    "one seed": ({"seeds": [3]}, 2, "at least two seeds, all different"),
    "a fixed seed": ({"fixed": {**FIXED, "seed": 7}}, 2, "remove seed from fixed"),
    "two recipes": ({"profile": "cpu-demo"}, 2, "both set"),
    "no recipe": ({"run": None}, 2, "both missing"),
    "no target": ({"target_loss": None}, 1, "the file has no target_loss, which"),
    "a folder as a source": (
        {"sources": [{"url": URL, "path": ".", "sha256": "0" * 64}]}, 2, "hint: set path to a file",
    ),
    "a device as a source": (
        {"sources": [{"url": URL, "path": "/dev/zero", "sha256": "0" * 64}]}, 2, "is not a regular file",
    ),
    "a wrong fixed key": (
        {"fixed": {**FIXED, "dataset": {**FIXED["dataset"], "pth": "a"}}}, 1,
        "dataset.pth is not a key --> rules.yaml:8",
    ),
    "a removed fixed key": (
        {"fixed": {**FIXED, "trainer": {"eval_max_batches": None, "ema_decay": 0.9}}}, 1,
        "trainer.ema_decay was removed --> rules.yaml:11",
    ),
    "an unknown key": ({"sedes": [1]}, 1, "sedes is not a key"),
    "text without a source": ({"sources": []}, 2, "text.txt, which the rule file does not list"),
    "an open evaluation": ({"fixed": fixed_without("datacollator", "mlm_probability_eval")}, 2, "must be"),
    "a part of the evaluation": ({"fixed": fixed_without("trainer", "eval_max_batches")}, 2, "must be null"),
    "an open tokenizer": ({"fixed": fixed_without("tokenizer", "vocab_size")}, 2, "tokenizer.vocab_size"),
    "trained weights": (
        {"recipe": {**RECIPE, "model": {**RECIPE["model"], "pretrained_checkpoint": "weights"}}},  # type: ignore[dict-item]
        2, "starts from the weights",
    ),
}  # fmt: skip


@pytest.mark.parametrize("entries", WRONG.values(), ids=WRONG)
def test_rules_that_do_not_hold_are_refused(entries, write, command):
    changes, code, words = entries
    answer = command("bench", "speedrun", write(**changes))
    assert (answer.code, answer.out) == (code, "")
    assert words in " ".join(answer.err.split())
    assert not Path("run").exists()


def test_the_example_names_its_source(command):
    rules = yaml.safe_load((EXAMPLES / "speedrun-rules.yaml").read_text(encoding="utf-8"))
    answer = command("bench", "speedrun", EXAMPLES / "speedrun-rules.yaml", "--dry-run")
    assert answer.code == 1
    assert rules["sources"][0]["url"] in answer.err.replace("\n", "").replace(" ", "")


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_a_speedrun_to_its_record_and_again(write, run_child):
    rules = write()
    answer = run_child("bench", "speedrun", rules).passed()
    assert "target 20, p " in answer.out
    assert "not a valid record" not in answer.out
    record = json.loads(Path("run/record.json").read_text(encoding="utf-8"))
    assert [each["seed"] for each in record["runs"]] == [3, 4]
    assert record["counts"]
    for each in record["runs"]:
        receipt = json.loads(Path(f"run/seed={each['seed']}/receipt.json").read_text(encoding="utf-8"))
        assert each["receipt_sha256"] == receipt["sha256"]
        assert 0 < each["seconds_from_first_step"] < each["seconds_from_command"]
        assert (each["step"], each["launches"]) == (8, 1)
    # Finished seeds are not trained again: this trainer would crash. Another target changes only the verdict.
    again = run_child("bench", "speedrun", write(target_loss=0.5), "--output-format", "json", fake="crash")
    assert again.code == 1, again.err
    assert [each.partition(":")[0] for each in again.json["objections"]] == [
        "the mean loss is not significantly below the target"
    ]
    assert not again.json["counts"]
    assert again.json["runs"] == record["runs"]
    assert again.json["rules_sha256"] != record["rules_sha256"]
    # A seed of several launches has no time from the command, and a mean of the other seeds would be no mean.
    manifest = Path("run/seed=3/manifest.json")
    launched = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps(launched | {"earlier": [launched]}), encoding="utf-8")
    resumed = run_child("bench", "speedrun", write(), fake="crash").passed()
    assert f" | - | {record['seconds_from_first_step']:.1f} | " in resumed.out
    assert json.loads(Path("run/record.json").read_text(encoding="utf-8"))["seconds_from_command"] is None


def test_runs_of_several_commits_are_no_record():
    run: dict[str, Any] = {"seed": 0, "is_guarded": True, **dict.fromkeys(SHARED, "a")}
    for name in ("code_diff_sha256", "hardware"):
        runs = [run, run | {"seed": 1, name: "b"}]
        same = {name: _shared_value(runs, name) for name in SHARED}
        assert list(_find_objections(runs, same, 0.001, 0.01)) == [f"the runs differ in {name}"]
    runs = [run, run | {"seed": 1, "commit": "b", "is_guarded": False}]
    same = {name: _shared_value(runs, name) for name in SHARED}
    assert list(_find_objections(runs, same, 0.001, 0.01)) == [
        "the runs differ in commit",
        "failed checks were ignored (--unguarded) for seed 1",
    ]
    assert list(_find_objections(runs[:1], {"commit": "a"}, 0.01, 0.01)) == [
        "the mean loss is not significantly below the target: p 0.01 (limit 0.01)"
    ]
    assert list(_find_objections(runs[:1], {"commit": "a"}, 0.0099, 0.01)) == []


def test_names_of_untracked_files_are_no_change_of_the_code(tmp_path):
    """A run directory in the repository of a user is untracked, and the next seed lists it."""
    name, patch = "working-tree-0.diff", b"+++ b/neobert/train.py\n+changed\n"
    digests = []
    for content in (patch, patch + b"# untracked: run/seed=3/metrics.jsonl\n", b"# untracked: run/a\n"):
        (tmp_path / name).write_bytes(content)
        digests.append(_code_diff_sha256(tmp_path, {"diff": name}))
    assert digests[0] == digests[1] != ""
    assert digests[2] == _code_diff_sha256(tmp_path, {"diff": None}) == ""
    (tmp_path / name).write_bytes(patch + b"+again\n")
    assert _code_diff_sha256(tmp_path, {"diff": name}) not in digests
