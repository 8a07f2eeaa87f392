"""A run for a CPU sees no GPU, and nothing that is started for it does."""

import os

import pytest

from launcher.commands.selection import VISIBLE_ENV, hide_gpus_from_cpu_run
from launcher.process.trainer_process import child_environment
from profiles.registry import resolve_run


@pytest.mark.parametrize(
    ("profile", "given", "seen"),
    [("cpu-demo", "0,1", ""), ("cpu-demo", None, ""), ("gpu-smoke", "0,1", "0,1"), ("a100-prod", None, None)],
)
def test_gpus_are_hidden_from_a_run_for_a_cpu(profile, given, seen, tmp_path, monkeypatch):
    if given is not None:
        monkeypatch.setenv(VISIBLE_ENV, given)
    hide_gpus_from_cpu_run(resolve_run(profile, (), ()))
    assert os.environ.get(VISIBLE_ENV) == seen
    assert child_environment(tmp_path / "error.json").get(VISIBLE_ENV) == seen


@pytest.mark.parametrize("words", [("preflight", "--level", "static"), ("train", "--dry-run")])
def test_commands_keep_a_run_to_its_device(words, command, monkeypatch):
    monkeypatch.setenv(VISIBLE_ENV, "0")
    command(*words, "-p", "cpu-demo", "--trainer.output_dir=run")
    assert os.environ[VISIBLE_ENV] == ""
