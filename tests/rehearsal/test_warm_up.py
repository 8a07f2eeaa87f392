"""What a process does in advance for the run that it will train: it leaves no trace in that run."""

from pathlib import Path

import pytest
import torch

from neobert.rehearsal.script import copy_run_in_progress
from neobert.rehearsal.trials import WorstCase
from neobert.rehearsal.warm_up import warm_up
from tests.rehearsal.conftest import global_settings_restored, perform, resolve


def test_a_run_after_a_warm_up_in_its_process_is_the_same(healthy, tmp_path, text):
    run = resolve(tmp_path, text, {})
    with global_settings_restored():
        torch.rand(7)
        warm_up(run.config)
    assert not Path(run.config.trainer.output_dir).exists()
    seen, _ = perform("fresh", run, tmp_path)
    assert seen["trace"] == healthy.seen["trace"]
    assert seen["state"] == healthy.seen["state"]


@pytest.mark.parametrize(("only", "expected"), [("evaluation", "evaluate"), ("step", "step"), ("", "run")])
def test_only_what_is_asked_for_is_warmed_up(tmp_path, text, monkeypatch, only, expected):
    called = []
    for name in ("step", "evaluate", "run"):
        monkeypatch.setattr(WorstCase, name, lambda *_, name=name: called.append(name))
    with global_settings_restored():
        warm_up(resolve(tmp_path, text, {}).config, only=only)
    assert called == [expected]


def test_a_copy_is_what_a_crash_would_leave(tmp_path):
    saved = tmp_path / "run" / "checkpoints" / "20"
    saved.mkdir(parents=True)
    (saved / "model.safetensors").write_bytes(b"weights")
    (saved.parent / "latest").symlink_to("20")
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    copy_run_in_progress(tmp_path / "run", tmp_path / "resumed")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write("{}\n")
    resumed = tmp_path / "resumed"
    assert (resumed / "metrics.jsonl").read_text() == "{}\n"
    assert (resumed / "checkpoints" / "latest" / "model.safetensors").samefile(saved / "model.safetensors")
