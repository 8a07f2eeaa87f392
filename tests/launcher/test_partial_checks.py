"""Findings on a file of another trainer: only about what the file itself says."""

from collections.abc import Callable
from typing import Any

import pytest

Found = Callable[[str], dict[str, str]]

FOREIGN = """\
dataset: {path: x.txt}
model: {use_flash: true}
trainer:
  max_steps: 100000
  save_every: 10000
  log_every: 10
"""


@pytest.fixture
def found(command: Callable[..., Any], run_file: Any) -> Found:
    def codes_and_hints(text: str) -> dict[str, str]:
        findings = command("lint", run_file(text), "--output-format", "json").json["findings"]
        return {each["code"]: each["hint"] for each in findings}

    return codes_and_hints


def test_a_foreign_file_without_a_profile_is_not_judged_for_an_assumed_cpu(found):
    codes = found(FOREIGN + "  mixed_precision: fp32\n")
    assert {"CFG005", "CFG007", "PRE001"} <= set(codes), "what no device changes is judged"
    assert not {"ATT003", "CKP002"} & set(codes)
    assert "ATT003" in found("profile: cpu-demo\n" + FOREIGN)
    assert set(found(FOREIGN.replace("100000", "-1"))) & {"BUD001"} == set(), "no key that is refused"
    assert set(found("task: glue\n" + FOREIGN)) == {"CFG003", "CFG007"}, "no rule of another task"


COMPOSER = """\
dataset: {path: text.txt}
global_train_batch_size: 4096
device_train_microbatch_size: 128
max_duration: 1ep
train_loader: {name: text, num_workers: 8}
"""


@pytest.mark.parametrize(
    "text",
    [
        COMPOSER,
        "dataset: {path: text.txt}\ntrainer: {max_steps: 100}\ntrain_loader: {name: text}\n",
        "datasets: {path: text.txt}\ntrain: {max_steps: 10}\nmodels: {hidden_size: 64}\n",
        "learning_rate: 1e-5\nmodel_name_or_path: mine\nnum_train_epochs: 3\ntrain_file: text.txt\n",
        "profile: cpu\ndataset: {path: text.txt}\nlearning_rate: 2e-5\nload_path: mine\n",
        "profile: cpu\npretraining_dataset: {path: mine, name: en}\n",
    ],
)
def test_no_default_is_judged(text, found):
    """Unknown keys may stand for what the file does not set: its steps, saves, tokenizer, first weights."""
    assert set(found(text)) <= {"CFG001", "CFG005", "CFG007"}


def test_a_hint_that_follows_from_defaults_is_left_out(found):
    saves_nothing = "trainer: {max_steps: 50000, save_every: 0}\ndataset: {path: text.txt}\n"
    assert found(saves_nothing)["CKP001"] == "", "the number of steps depends on the speed"
    assert found("profile: a100-prod\n" + saves_nothing)["CKP001"].startswith("set trainer.save_steps to ")
