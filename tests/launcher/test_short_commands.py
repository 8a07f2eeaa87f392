"""`pretrain`, and weights, batch size and steps given next to a run file."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.launcher.model_folders import write_model

SHORT = ("--batch-size", "4", "--steps", "100")
NOTES = "A document of some words.\n\n" * 4000


@pytest.fixture(autouse=True)
def _text() -> None:
    Path("notes").mkdir()
    Path("notes", "a.txt").write_text(NOTES, encoding="utf-8")


def run_file(**more: Any) -> Path:
    file = Path("causal.yaml")
    file.write_text(
        yaml.safe_dump({"profile": "cpu", "dataset": {"path": "notes/"}} | more), encoding="utf-8"
    )
    return file


@pytest.mark.parametrize(
    ("model", "task"), [("llama", "causal"), ("qwen2", "causal"), ("modernbert", "pretrain")]
)
@pytest.mark.child
def test_without_a_task_the_attention_of_the_weights_decides(model, task, launch):
    write_model(Path("model"), model)
    answer = launch("pretrain", "@", run_file(), "--model-name", "model", *SHORT, fake="finish").passed()
    (resolved,) = Path("runs").glob("*/resolved.json")
    config = json.loads(resolved.read_text(encoding="utf-8"))
    assert (config["task"], config["model"]["type"]) == (task, "hf")
    assert config["trainer"]["per_device_train_batch_size"] == 4
    assert (config["trainer"]["max_steps"], config["tokenizer"]["path"]) == (100, "model")
    rate = config["optimizer"]["lr"]
    assert re.search(rf"optimizer.lr is {rate:g}, an estimate for weights of width 64", answer.err)


def test_a_rate_of_the_run_file_stays(command):
    write_model(Path("model"), "llama")
    file = run_file(task="causal", optimizer={"lr": 1e-5})
    answer = command("pretrain", f"@{file}", "--model-name", "model", "--dry-run")
    assert (answer.code, "optimizer.lr" in answer.err) == (0, False), answer.out + answer.err


@pytest.mark.parametrize(("given", "is_found"), [((), False), (("--trainer.eval_steps", "50"), True)])
def test_intervals_end_with_the_steps(given, is_found, command):
    write_model(Path("model"), "llama")
    file = run_file(trainer={"eval_steps": 50})
    answer = command("pretrain", file, "--model-name", "model", "--steps", "4", *given, "--dry-run", "--json")
    assert ("SCH004" in [each["code"] for each in answer.json["findings"]]) is is_found
