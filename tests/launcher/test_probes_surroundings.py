"""Probes of tracker, scheduler and data."""

import json
import os
import re
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.probes import data
from launcher.probes.data import probe_data
from launcher.probes.probe import IncompleteError
from launcher.probes.scheduler import parse_time_left, probe_scheduler
from launcher.probes.tracker import probe_tracker
from launcher.run.launch_context import find_deadlines
from neobert.config import to_dict
from neobert.errors import ProjectError
from neobert.families.neobert.trained_settings import PUBLISHED
from neobert.runfiles.checkpoint.manifest import seal_checkpoint
from neobert.runfiles.checkpoint.refusal import DAMAGED_HINT
from profiles.registry import resolve_run
from tests.launcher.model_folders import write_header

UNREADABLE = "the file is not a readable safetensors file: the header has 0 bytes (limit 16,777,216)"


def test_tracker_credentials(configured, subject, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    assert not probe_tracker(subject).has_credentials
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password x\n", encoding="utf-8")
    (tmp_path / ".netrc").chmod(0o600)
    assert probe_tracker(subject).has_credentials
    assert not probe_tracker(subject).is_offline
    assert probe_tracker(configured({"wandb.mode": "offline"})).is_offline


def test_a_server_of_ones_own_has_its_own_login(subject, tmp_path, monkeypatch):
    login = tmp_path / "login"
    login.write_text("machine tracker.example login user password x\n", encoding="utf-8")
    login.chmod(0o600)
    monkeypatch.setenv("NETRC", str(login))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert not probe_tracker(subject).has_credentials
    monkeypatch.setenv("WANDB_BASE_URL", "https://tracker.example:8080")
    assert probe_tracker(subject).has_credentials


@pytest.mark.child
def test_the_trackers_server_is_asked_for_a_connection(configured, subject, monkeypatch):
    for name in ("WANDB_MODE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    online = configured({"wandb.enabled": True})
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert probe_tracker(online).is_reachable is True
    assert probe_tracker(online).is_reachable is False
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert probe_tracker(online).is_reachable is None
    monkeypatch.delenv("http_proxy")
    assert probe_tracker(subject).is_reachable is None
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert probe_tracker(online).is_reachable is None


def test_scheduler_from_the_environment():
    end = str(int(time.time()) + 3600)
    found = probe_scheduler({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": end, "SBATCH_SIGNAL": "B:TERM@120"})
    assert (found.name, found.job_id, found.signal_lead_s) == ("slurm", "7", 120.0)
    assert 3500 < (found.walltime_left_s or 0) <= 3600
    assert found.end_is_known
    assert (probe_scheduler({}).name, probe_scheduler({}).end_is_known) == ("", False)


def test_a_lead_that_is_no_number_is_named():
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "99", "NEOBERT_SIGNAL_LEAD_S": "2m"}
    with pytest.raises(IncompleteError, match="NEOBERT_SIGNAL_LEAD_S is '2m'"):
        probe_scheduler(environment)


@pytest.mark.child
def test_an_end_that_only_the_queue_tells_is_not_known_to_the_trainer(tmp_path, monkeypatch):
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 1:00:00\n", encoding="ascii")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = probe_scheduler({"SLURM_JOB_ID": "7"})
    assert (found.walltime_left_s, found.end_is_known) == (3600.0, False)
    assert find_deadlines(resolve_run("a100-prod"), {"SLURM_JOB_ID": "7"}, 0.0) == ()


@pytest.mark.child
@pytest.mark.parametrize(
    ("step", "mode", "kind", "lead_s"),
    [
        ("0", "REQUEUE", "partition_prio", 70.0),
        ("", "REQUEUE", "partition_prio", 30.0),
        ("0", "OFF", "partition_prio", None),
        ("0", "REQUEUE", "none", None),
    ],
)
def test_the_time_between_the_warning_and_a_preemption_is_that_of_the_partition(
    step, mode, kind, lead_s, tmp_path, monkeypatch
):
    """Slurm warns a step at the start of the grace time, and a batch script at its end."""
    config = f"KillWait                = 30 sec\nPreemptType             = preempt/{kind}"
    partition = f"PartitionName=low GraceTime=40 Hidden=NO PreemptMode={mode} State=UP"
    scontrol = tmp_path / "scontrol"
    answers = f'case "$2" in config) echo "{config}";; partition) echo "{partition}";; esac'
    scontrol.write_text(f"#!/bin/sh\n{answers}\n", encoding="ascii")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "99", "SLURM_JOB_PARTITION": "low"}
    found = probe_scheduler(job | ({"SLURM_STEP_ID": step} if step else {}))
    assert (found.preempt_lead_s, found.is_step) == (lead_s, bool(step))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93784.0), ("02:03", 123.0), ("1:00:00", 3600.0), ("UNLIMITED", None), ("", None)],
)
def test_time_left(text, seconds):
    assert parse_time_left(text) == seconds


def test_data_that_is_not_there(configured, subject, tmp_path):
    assert not probe_data(configured({"dataset.path": str(tmp_path / "absent")})).exists
    (tmp_path / "empty").mkdir()
    assert not probe_data(configured({"dataset.path": str(tmp_path / "empty")})).is_readable
    assert not probe_data(subject).exists


def test_data_that_cannot_be_read(configured, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "a.txt"
    path.write_text("x", encoding="utf-8")
    subject = configured({"dataset.path": str(path)})
    monkeypatch.setattr(Path, "open", refuse)
    found = probe_data(subject)
    assert (found.exists, found.is_readable, found.reason) == (True, False, f"{path}: Permission denied")


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("file", "no file can be created in {}/file (Not a directory)"),
        ("file/below", "no file can be created in {}/file (Not a directory)"),
        ("dangling", "no file can be created in {}/dangling (No such file or directory)"),
        ("new", ""),
    ],
)
def test_a_cache_folder_must_accept_files(place, reason, configured, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "unmounted")
    subject = configured({"dataset.cache_dir": str(tmp_path / place)})
    assert probe_data(subject).cache_reason == reason.format(tmp_path)


def test_a_read_only_cache_may_hold_the_prepared_text(configured, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "why_not_writable", lambda folder: f"{folder} is read-only")
    subject = configured({"dataset.cache_dir": str(tmp_path)})
    assert probe_data(subject).cache_reason == f"{tmp_path} is read-only"
    (tmp_path / "key").mkdir()
    (tmp_path / "key" / "manifest.json").touch()
    assert not probe_data(subject).cache_reason


def test_a_folder_that_only_its_owner_may_enter(configured, tmp_path, monkeypatch):
    """Such a folder in a shared cache hides no prepared text, and as text it is unreadable."""

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.parent.name.startswith("private"):
            raise PermissionError(13, "Permission denied", str(path))
        return os.stat(path, follow_symlinks=follow_symlinks)

    for name in ("private-1", "key", "private-2"):
        (tmp_path / "cache" / name).mkdir(parents=True)
    (tmp_path / "cache/key/manifest.json").touch()
    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(data, "why_not_writable", lambda folder: f"{folder} is read-only")
    keys = {"dataset.cache_dir": str(tmp_path / "cache")}
    assert not probe_data(configured(keys)).cache_reason
    found = probe_data(configured(keys | {"dataset.path": str(tmp_path / "cache/private-1")}))
    assert (found.is_readable, found.cache_reason) == (False, f"{tmp_path / 'cache'} is read-only")


def test_a_tokenizer_by_path(configured, subject, tmp_path):
    at = configured({"dataset.name": "builtin:python-docs", "tokenizer.path": str(tmp_path)})
    assert not probe_data(at).tokenizer_exists
    (tmp_path / "tokenizer.json").touch()
    assert probe_data(at).tokenizer_exists


def test_hub_names_are_looked_up_in_the_cache_first(tmp_path):
    offline = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    with pytest.raises(IncompleteError, match="offline"):
        data.is_available("datasets", "some/text", offline)
    (tmp_path / "hub" / "datasets--some--text" / "snapshots").mkdir(parents=True)
    assert data.is_available("datasets", "some/text", offline)


@pytest.mark.child
def test_a_hub_that_does_not_answer_is_unknown(tmp_path):
    nobody = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    with pytest.raises(IncompleteError, match="no response from"):
        data.is_available("models", "some/model", nobody)


@pytest.mark.parametrize(
    ("name", "files", "reason"),
    [
        ("ckpt", (), "no such file or folder"),
        (
            "ckpt",
            ("ckpt/pytorch_model.bin",),
            "its weights are pickles (pytorch_model.bin), which may run code when read; convert them with "
            "save_pretrained on an isolated machine",
        ),
        (
            "ckpt",
            ("ckpt/adapter_config.json", "ckpt/adapter_model.safetensors"),
            "an adapter without its base model; merge both with peft (merge_and_unload) and save the model",
        ),
        (
            "run",
            ("run/checkpoints/latest/model.safetensors",),
            "it is a run directory; its newest checkpoint is run/checkpoints/latest",
        ),
        ("ckpt", ("ckpt/model.safetensors",), f"ckpt/model.safetensors: {UNREADABLE}"),
        (
            "ckpt",
            ("ckpt/model.safetensors.index.json",),
            "ckpt/model.safetensors.index.json: invalid index of shards: "
            "JSONDecodeError('Expecting value: line 1 column 1 (char 0)')",
        ),
        ("own.safetensors", ("own.safetensors",), f"own.safetensors: {UNREADABLE}"),
    ],
)
@pytest.mark.child
def test_weights_are_looked_for_where_the_trainer_looks(configured, tmp_path, name, files, reason):
    from neobert.export import read_weights  # imports torch

    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    found = probe_data(configured({"model.pretrained_checkpoint": name}))
    assert (found.weights, found.weights_reason) == (name, reason)
    with pytest.raises(ProjectError) as refusal:
        read_weights(Path(name))
    assert ("in this folder" in refusal.value.message) != reason.startswith(("ckpt/", "own"))


@pytest.mark.parametrize(
    ("content", "key", "reason", "hint"),
    [
        (
            {"hidden_size": 384, "num_hidden_layers": 7},
            "model.hidden_size",
            r"model\.hidden_size is \d+, model\.num_hidden_layers is \d+, .* were trained with 384, 7",
            "set model.hidden_size to 384, model.num_hidden_layers to 7",
        ),
        (
            {"model_type": "bert", "hidden_size": 384},
            "model.pretrained_checkpoint",
            r"the weights in ckpt belong to a transformers bert, not to a NeoBERT",
            "set model.type to hf and model.config to ckpt, "
            "or set model.pretrained_checkpoint to the weights of a NeoBERT",
        ),
        (
            {"model_type": "albert"},
            "model.pretrained_checkpoint",
            r"the weights in ckpt belong to a transformers albert",
            "set model.pretrained_checkpoint to the weights of a NeoBERT",
        ),
        (
            {"hidden_size": None},
            "",
            r"config\.json: hidden_size is null, expected a value such as 768",
            "correct hidden_size in ckpt/config.json",
        ),
        ({}, "", "", ""),
        ([], "", r"config\.json: the file is not a JSON object", "restore the file from a copy"),
        (
            "x" * 2**20,
            "",
            r"config\.json: the file has [\d,]+ bytes \(limit 1,048,576\)",
            "restore the checkpoint's config.json",
        ),
    ],
)
def test_weights_of_another_size_are_found_with_the_values_to_set(
    configured, tmp_path, content, key, reason, hint
):
    (tmp_path / "ckpt").mkdir()
    write_header(tmp_path / "ckpt" / "model.safetensors", {})
    subject = configured({"model.pretrained_checkpoint": "ckpt"})
    if isinstance(content, dict):
        own = {name: getattr(subject.config.model, name) for name in PUBLISHED}
        content = own | content
    (tmp_path / "ckpt" / "config.json").write_text(json.dumps(content), encoding="utf-8")
    found = probe_data(subject)
    assert (found.weights_key, found.weights_hint) == (key, hint)
    assert re.search(reason, found.weights_reason) if reason else not found.weights_reason


def sealed_weights(folder: Path) -> Path:
    folder.mkdir(parents=True)
    write_header(folder / "model.safetensors", {})
    (folder / "optimizer.bin").write_bytes(b"moments")
    seal_checkpoint(folder, 4, "digest", "2026-01-01T00:00:00+00:00")
    return folder


@pytest.mark.parametrize("spelling", ["4", "4/model.safetensors"])
def test_the_weights_of_a_checkpoint_are_verified(configured, tmp_path, spelling):
    folder = sealed_weights(tmp_path / "checkpoints" / "4")
    (folder / "optimizer.bin").unlink()
    requested: list[str] = []
    subject = replace(
        configured({"model.pretrained_checkpoint": str(folder.parent / spelling)}),
        request_time=lambda _, doing: requested.append(doing),
    )
    assert (probe_data(subject).weights_damage, probe_data(subject).weights_reason) == ("", "")
    assert all(doing.startswith(f"verifying {folder}") for doing in requested)
    assert requested, "a large file takes longer than a light probe may"
    (folder / "model.safetensors").write_bytes(bytes((folder / "model.safetensors").stat().st_size))
    found = probe_data(subject)
    assert found.weights_damage == "the content of model.safetensors changed after the save"
    assert (found.weights_reason, found.weights_key, found.weights_hint) == ("", "", DAMAGED_HINT)


def tokenizer_at(folder: Path, *words: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"model": {"vocab": {word: number for number, word in enumerate(words)}}}
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return str(folder)


def test_the_tokenizer_of_the_weights_is_compared_with_the_files_of_the_run(configured, tmp_path):
    weights = tokenizer_at(tmp_path / "ckpt", "a", "b", "c")
    moved, renamed = (tokenizer_at(tmp_path / words, *words) for words in ("bac", "abx"))

    def compared(path: str | None, weights: str | None = weights) -> tuple[int, int]:
        keys = {"model.pretrained_checkpoint": weights, "tokenizer.path": path}
        found = probe_data(configured(keys | {"tokenizer.name": None}))
        return found.renumbered_tokens, found.weights_tokens

    assert compared(moved) == compared(f"{moved}/tokenizer.json") == (2, 3)
    assert compared(moved, f"{weights}/model.safetensors") == (2, 3)
    assert compared(renamed) == (0, 3), "one of three tokens is missing: it may have been renamed"
    for same in (weights, None, str(tmp_path / "absent")):
        assert compared(same) == (0, 0)
    assert compared(moved, None) == (0, 0)
    (tmp_path / "bac" / "tokenizer.json").write_text("{", encoding="utf-8")
    assert compared(moved) == (0, 0), "the inspection of the text names the damaged file"
    (tmp_path / "ckpt" / "tokenizer.json").unlink()
    assert compared(renamed) == (0, 0)


def test_a_run_that_trains_a_tokenizer_is_compared_with_the_run_of_the_weights(configured, tmp_path):
    weights = tokenizer_at(tmp_path / "ckpt", "a", "b", "c")
    keys = {"model.pretrained_checkpoint": weights, "tokenizer.path": None, "tokenizer.name": None}
    subject = configured(keys)
    assert probe_data(subject).tokenizer_differences == (), "the weights have no config of their run"
    saved = to_dict(subject.config)
    (tmp_path / "ckpt" / "trainer_state").mkdir()
    file = tmp_path / "ckpt" / "trainer_state" / "resolved.json"
    file.write_text(json.dumps(saved), encoding="utf-8")
    assert probe_data(subject).tokenizer_differences == ()
    file.write_text(
        json.dumps(saved | {"tokenizer": saved["tokenizer"] | {"vocab_size": 77}}), encoding="utf-8"
    )
    (difference,) = probe_data(subject).tokenizer_differences
    assert difference.startswith("tokenizer.vocab_size: 77 in the checkpoint")
    assert probe_data(configured(keys | {"tokenizer.path": weights})).tokenizer_differences == ()
    (tmp_path / "ckpt" / "tokenizer.json").unlink()
    assert probe_data(subject).tokenizer_differences == (), "the trainer compares nothing either"


def test_packages_and_folders_of_all_trackers(subject, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "file" / "trackio"))
    monkeypatch.setattr("importlib.metadata.version", {"wandb": "1"}.__getitem__)
    monkeypatch.setattr("importlib.metadata.PackageNotFoundError", KeyError)
    found = probe_tracker(subject)
    absent = dict.fromkeys(("trackio", "tensorboard", "mlflow"), False)
    assert found.packages == absent | {"wandb": True, "prometheus": True}
    assert found.unwritable == {"trackio": str(tmp_path / "file")}
