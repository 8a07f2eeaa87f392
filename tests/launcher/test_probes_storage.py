"""Probes of memory, disk, and what a run directory holds already."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.probes import disk, host, resume
from launcher.probes.data import probe_data
from launcher.probes.disk import probe_disk, probe_output
from launcher.probes.resume import probe_resume
from neobert.config import to_dict
from neobert.config.corpora import PLUGGED
from neobert.config.schema import RunConfig
from neobert.runfiles.checkpoint.manifest import Manifest, seal_checkpoint, verify_checkpoint
from neobert.runfiles.continuation import source_provenance, with_located_text
from neobert.training.checkpoint.publish import publish, set_aside_after
from validators.facts import PLUGGED_SOURCE

MIB = 2**20


def test_secrets_are_not_recorded():
    environment = {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_TOKEN": "s",
        "NCCL_DEBUG": "INFO",
        "CUDA_API_KEY": "s",
        "HOME": "/",
    }
    assert host.recorded_environment(environment) == {"HF_HUB_OFFLINE": "1", "NCCL_DEBUG": "INFO"}


def test_a_container_limit_is_the_memory(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(str(512 * 2**20), encoding="ascii")
    (tmp_path / "memory.current").write_text(str(12 * 2**20), encoding="ascii")
    monkeypatch.setattr(host, "CGROUP", tmp_path)
    assert (host.probe_host().ram_total_mib, host.probe_host().ram_available_mib) == (512, 500)
    (tmp_path / "memory.max").write_text("max", encoding="ascii")
    assert host.probe_host().ram_total_mib > 512


def test_disk_is_tried_and_left_as_it_was(subject, tmp_path):
    before = sorted(tmp_path.iterdir())
    found = probe_disk(subject)
    assert (found.is_writable, found.fsync_works, found.rename_works, found.error) == (True, True, True, "")
    assert found.path == str(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("kind", ["system", "job", "disk"])
def test_a_temporary_folder_is_named(kind, subject, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "TEMPORARY", (str(tmp_path),) if kind == "system" else ())
    monkeypatch.setenv("TMPDIR", str(tmp_path if kind == "job" else tmp_path / "other"))
    assert probe_disk(subject).temporary_folder == ("" if kind == "disk" else str(tmp_path))


def test_a_file_in_the_folder_s_place_says_nothing_of_the_disk(subject):
    subject.output_dir.parent.mkdir(parents=True)
    subject.output_dir.write_text("a file", encoding="utf-8")
    found = probe_disk(subject)
    assert (found.is_writable, found.path) == (True, str(subject.output_dir.parent))
    assert not probe_output(subject).is_directory


@pytest.mark.parametrize(
    ("broken", "promises"),
    [
        ("os.urandom", (False, False, False)),
        ("os.fsync", (True, False, False)),
        ("rename", (True, True, False)),
    ],
)
def test_a_disk_that_breaks_a_promise(broken, promises, subject, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if broken == "rename":
        monkeypatch.setattr(Path, "replace", refuse)
    else:
        monkeypatch.setattr(disk.os, broken.partition(".")[2], refuse)
    found = probe_disk(subject)
    assert (found.is_writable, found.fsync_works, found.rename_works) == promises
    assert found.error == "No space left on device"


def test_checkpoints_that_another_user_keeps_are_tried_too(subject, monkeypatch):
    checkpoints = subject.output_dir / "checkpoints"
    checkpoints.mkdir(parents=True)
    make_folder = tempfile.TemporaryDirectory

    def refuse(**words: Any) -> Any:
        if words["dir"] == checkpoints:  # a mode would not keep root out
            raise PermissionError(13, "Permission denied")
        return make_folder(**words)

    assert (probe_disk(subject).path, probe_disk(subject).error) == (str(checkpoints), "")
    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    found = probe_disk(subject)
    assert (found.is_writable, found.path, found.error) == (False, str(checkpoints), "Permission denied")


def checkpoint(root: Path, step: int, config: RunConfig, size_bytes: int = 100) -> Path:
    def fill(folder: Path) -> None:
        (folder / "trainer_state").mkdir()
        (folder / "weights").write_bytes(b"w" * size_bytes)
        (folder / "trainer_state" / "resolved.json").write_text(json.dumps(to_dict(config)), encoding="utf-8")

    root.mkdir(parents=True, exist_ok=True)
    publish(root, step, "0" * 64, "2026-01-01T00:00:00+00:00", fill)
    return root / str(step)


def test_output_of_an_earlier_run(subject):
    assert (probe_output(subject).exists, probe_output(subject).is_empty) == (False, True)
    subject.output_dir.mkdir(parents=True)
    assert (probe_output(subject).exists, probe_output(subject).is_empty) == (True, True)
    checkpoint(subject.output_dir / "checkpoints", 10, subject.config)
    found = probe_output(subject)
    assert (found.is_empty, found.checkpoint_steps, found.num_set_aside) == (False, (10,), 0)
    checkpoint(subject.output_dir / "checkpoints", 20, subject.config)
    set_aside_after(subject.output_dir / "checkpoints", 10)
    found = probe_output(subject)
    assert (found.checkpoint_steps, found.num_set_aside, found.runs) == ((10,), 1, ())
    for point in ("seed=2", "seed=1", "notes"):
        (subject.output_dir / point).mkdir()
    for point in ("seed=1", "seed=2"):
        (subject.output_dir / point / "resolved.json").touch()
    assert probe_output(subject).runs == ("seed=1", "seed=2")


SELECTOR = "trainer.resume_from_checkpoint"


def test_resume_takes_the_newest_that_verifies(configured, subject):
    root = subject.output_dir / "checkpoints"
    auto = configured({SELECTOR: "auto"})
    assert not probe_resume(auto).exists
    for step in (10, 20):
        checkpoint(root, step, subject.config)
    assert (probe_resume(auto).step, probe_resume(auto).is_verified) == (20, True)
    (root / "20" / "weights").write_bytes(b"x" * 100)
    found = probe_resume(auto)
    assert (found.step, found.is_verified) == (10, True)
    assert found.passed_by == ("20: the content of weights changed after the save",)
    (root / "10" / "weights").unlink()
    broken = probe_resume(auto)
    assert (broken.exists, broken.is_verified) == (True, False)
    assert "weights" in broken.reason


@pytest.mark.parametrize("name", [".corrupt-10-0", ".superseded-10-0"])
def test_what_the_trainer_would_not_start_afresh_over_is_no_fresh_start_here(name, configured, subject):
    checkpoint(subject.output_dir / "checkpoints", 10, subject.config).rename(
        subject.output_dir / "checkpoints" / name
    )
    found = probe_resume(configured({SELECTOR: "auto"}))
    assert (found.exists, found.is_verified) == (True, False)
    assert name in found.reason


def test_every_checkpoint_that_is_looked_at_gets_the_time_that_its_bytes_take(configured, subject):
    root = subject.output_dir / "checkpoints"
    for step, size_mib in ((10, 1), (20, 3), (30, 2)):
        checkpoint(root, step, subject.config, size_mib * MIB)
    (root / "30" / "weights").write_bytes(b"x" * 2 * MIB)
    requested: list[tuple[int, str]] = []
    at = replace(
        configured({SELECTOR: "auto"}),
        request_time=lambda limit_s, what: requested.append((round(limit_s, 2), what)),
    )
    assert probe_resume(at).step == 20
    # 30 s, and 50 MiB/s: the newest is damaged, and the oldest need not be read.
    assert requested == [
        (30.04, f"verifying {root / '30'}: 2 MiB"),
        (30.06, f"verifying {root / '20'}: 3 MiB"),
    ]
    named = replace(at, config=configured({SELECTOR: str(root / "10")}).config)
    assert probe_resume(named).step == 10
    assert requested[2:] == [(30.02, f"verifying {root / '10'}: 1 MiB")]


def test_resume_from_a_path(configured, subject):
    folder = checkpoint(subject.output_dir / "checkpoints", 10, subject.config)
    named = configured({SELECTOR: str(folder)})
    assert (probe_resume(named).step, probe_resume(named).target) == (10, str(folder))
    assert not probe_resume(configured({SELECTOR: str(folder.parent / "99")})).exists


def test_a_pointer_to_a_broken_checkpoint_is_there_and_what_could_be_taken_is_named(configured, subject):
    root = subject.output_dir / "checkpoints"
    for step in (10, 20):
        checkpoint(root, step, subject.config)
    (root / "20" / "weights").unlink()
    latest = configured({SELECTOR: "latest"})
    broken = probe_resume(latest)
    assert (broken.exists, broken.target) == (True, str(root / "20"))
    assert broken.alternative == str(root / "10")
    (root / "latest").unlink()
    assert (probe_resume(latest).exists, probe_resume(latest).alternative) == (False, str(root / "10"))
    (root / "10" / "weights").unlink()
    assert probe_resume(latest).alternative == ""


@pytest.mark.parametrize("named", ["elsewhere", "elsewhere/checkpoints"])
def test_a_run_directory_is_no_checkpoint_and_its_newest_is_named(named, configured, subject, tmp_path):
    checkpoint(subject.output_dir / "checkpoints", 30, subject.config)
    root = tmp_path / "elsewhere" / "checkpoints"
    for step in (10, 20):
        checkpoint(root, step, subject.config)
    found = probe_resume(configured({SELECTOR: str(tmp_path / named)}))
    assert (found.exists, found.is_verified, found.alternative) == (True, False, str(root / "20"))
    assert found.reason == "this folder contains checkpoints but is not a checkpoint"


def test_a_pointer_that_is_not_there_is_named_with_its_folder(configured, subject):
    found = probe_resume(configured({SELECTOR: "latest"}))
    assert (found.exists, found.target) == (False, str(subject.output_dir / "checkpoints" / "latest"))


def test_auto_that_meets_a_checkpoint_of_somebody_else_has_an_earlier_one_named(
    configured, subject, monkeypatch
):
    root = subject.output_dir / "checkpoints"
    for step in (10, 20):
        checkpoint(root, step, subject.config)

    def verify_own(folder: Path) -> Manifest:
        if folder.name == "20":
            raise PermissionError(13, "Permission denied", str(folder / "weights"))
        return verify_checkpoint(folder)

    monkeypatch.setattr(resume, "verify_checkpoint", verify_own)
    found = probe_resume(configured({SELECTOR: "auto"}))
    assert (found.exists, found.is_verified, found.alternative) == (True, False, str(root / "10"))


def test_a_run_that_continues_another_has_its_checkpoint_and_its_plateau(configured, subject, tmp_path):
    root, key = tmp_path / "first" / "checkpoints", "trainer.continue_from"
    source = configured({"scheduler.warmup_steps": 2, "trainer.max_steps": 40, "scheduler.decay_steps": 10})
    checkpoint(root, 30, source.config)
    of_other_data = {"dataset.max_seq_length": 64, "optimizer.lr": 0.5, "trainer.max_steps": 60}
    for place in (root.parent, root, root / "30"):
        found = probe_resume(configured({key: str(place), **of_other_data}))
        assert (found.target, found.step, found.stable_steps) == (str(root / "30"), 30, (2, 30))
        assert (found.is_verified, found.is_continued, found.is_elsewhere) == (True, True, True)
        assert found.structural_differences == ()
    wider = probe_resume(configured({key: str(root), "model.hidden_size": 384, "optimizer.name": "lion"}))
    assert [each.partition(":")[0] for each in wider.structural_differences] == [
        "model.hidden_size",
        "optimizer.name",
    ]
    assert found.tokenizer_differences == ()
    own_text = {"dataset.path": "plays.txt", "tokenizer.vocab_size": 77}
    trained = probe_resume(configured({key: str(root), **own_text}))
    assert [each.partition(":")[0] for each in trained.tokenizer_differences] == [
        "dataset.path",
        "tokenizer.vocab_size",
    ]
    named = probe_resume(configured({key: str(root), **own_text, "tokenizer.path": str(root / "30")}))
    assert named.tokenizer_differences == ()
    missing = probe_resume(configured({key: str(tmp_path / "none")}))
    assert (missing.exists, missing.is_continued) == (False, True)
    # A checkpoint of its own comes first.
    checkpoint(subject.output_dir / "checkpoints", 35, subject.config)
    own = probe_resume(configured({key: str(root), SELECTOR: "auto"}))
    assert (own.step, own.is_continued, own.is_elsewhere) == (35, False, False)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("notes.txt", "the folder is neither a checkpoint nor a run directory"),
        (
            "config.json",
            "the folder has weights, but no training state: "
            "only model.pretrained_checkpoint can start from it",
        ),
        ("resolved.json", "the run has no checkpoint yet"),
        (
            "trainer_state/rank-0",
            "no checkpoint.json: not a checkpoint, or an incomplete save",
        ),
        ("", "the path is a file, not a folder"),
    ],
)
@pytest.mark.parametrize("key", [SELECTOR, "trainer.continue_from"])
def test_a_folder_to_go_on_from_that_is_no_checkpoint(configured, tmp_path, content, reason, key):
    place = tmp_path / "first"
    file = place / content
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    found = probe_resume(configured({key: str(place)}))
    assert (found.target, found.exists, found.is_verified) == (str(place), True, False)
    assert found.reason == reason


def test_a_continued_run_needs_the_text_of_its_source(configured, subject, tmp_path):
    source = configured({"dataset.path": "old.txt", "dataset.name": None, "dataset.max_seq_length": 64})
    checkpoint(tmp_path / "first" / "checkpoints", 30, source.config)
    continued = configured({"trainer.continue_from": "first", "dataset.max_seq_length": 32})
    found = probe_resume(continued)
    assert found.source_reason == "old.txt: does not exist"
    assert found.muon_peak == source.config.optimizer.lr
    (tmp_path / "old.txt").touch()
    assert probe_resume(continued).source_reason == "old.txt: contains no text"
    (tmp_path / "old.txt").write_text("a text", encoding="utf-8")
    assert probe_resume(continued).source_reason == ""
    checkpoint(subject.output_dir / "checkpoints", 35, source.config)
    own = probe_resume(configured({SELECTOR: "auto"}))
    assert own.source_reason == ""


def test_the_text_of_an_earlier_run_is_where_that_run_read_it(configured, tmp_path):
    source = configured({"dataset.path": "old.txt", "dataset.name": None, "dataset.max_seq_length": 64})
    folder = checkpoint(tmp_path / "first" / "checkpoints", 30, source.config)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "old.txt").write_text("a text", encoding="utf-8")
    continued = configured({"trainer.continue_from": "first", "dataset.max_seq_length": 32})
    evaluated = configured({"trainer.eval_source_path": str(folder)})
    assert probe_resume(continued).source_reason == "old.txt: does not exist"
    assert probe_data(evaluated).source_reason == "old.txt: does not exist"
    record = {"working_directory": str(tmp_path / "elsewhere")}
    (tmp_path / "first" / "manifest.json").write_text(json.dumps(record), encoding="utf-8")
    assert probe_resume(continued).source_reason == ""
    assert probe_data(evaluated).source_reason == ""
    located = with_located_text(to_dict(source.config), folder)
    assert located["dataset"]["path"] == str(tmp_path / "elsewhere" / "old.txt")


def test_the_tokenizer_of_an_earlier_run_is_where_that_run_read_it(configured, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "own").mkdir(parents=True)
    (elsewhere / "own" / "tokenizer.json").touch()
    (elsewhere / "turns").mkdir()  # also the name of a template
    source = configured(
        {
            "dataset.name": "builtin:python-docs",
            "tokenizer.path": "own",
            "tokenizer.chat_template": "own/talk.jinja",
        }
    )
    folder = checkpoint(tmp_path / "first" / "checkpoints", 30, source.config)
    continued = configured({"trainer.continue_from": "first"})
    assert probe_resume(continued).source_reason == "there is no tokenizer in own"
    record = {"working_directory": str(elsewhere)}
    (tmp_path / "first" / "manifest.json").write_text(json.dumps(record), encoding="utf-8")
    unread = "own/talk.jinja: the chat template cannot be read: No such file or directory"
    assert probe_resume(continued).source_reason == unread
    (elsewhere / "own" / "talk.jinja").touch()
    assert probe_resume(continued).source_reason == ""
    located = source_provenance(folder, {"step": 30, "tokens_total": 1})["tokenizer"]
    assert located["path"] == str(elsewhere / "own")
    assert located["chat_template"] == str(elsewhere / "own" / "talk.jinja")
    named = {"tokenizer": {"chat_template": "turns"}}
    assert with_located_text(named, folder) == named


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ({"dataset.name": PLUGGED}, PLUGGED_SOURCE),
        ({"dataset.name": None, "dataset.path": "empty"}, "empty: contains no text"),
    ],
)
def test_a_reason_for_each_text_of_an_earlier_run_that_cannot_be_read(configured, tmp_path, text, reason):
    (tmp_path / "empty").mkdir()
    checkpoint(tmp_path / "first" / "checkpoints", 30, configured(text).config)
    assert probe_data(configured({"trainer.eval_source_path": "first"})).source_reason == reason
    assert probe_resume(configured({"trainer.continue_from": "first"})).source_reason == reason


@pytest.mark.parametrize("path", [".", "./", "./.", "data/**.jsonl", "data/x[1].jsonl"])
def test_each_path_that_a_run_reads_is_located(tmp_path, path):
    folder = tmp_path / "first" / "checkpoints" / "30"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x[1].jsonl").touch()
    (tmp_path / "first").mkdir()
    record = {"working_directory": str(tmp_path)}
    (tmp_path / "first" / "manifest.json").write_text(json.dumps(record), encoding="utf-8")
    located = with_located_text({"dataset": {"path": path}}, folder)
    assert located["dataset"]["path"] == str(Path(tmp_path, path))


def test_weights_of_a_mixture_train_no_other_tokenizer(configured, tmp_path):
    def mixture(*names: str, weight: float = 1.0) -> dict[str, Any]:
        corpora = [{"path": name, "weight": weight} for name in names]
        return {"trainer.continue_from": str(tmp_path / "first"), "dataset.mixture": corpora}

    checkpoint(tmp_path / "first" / "checkpoints", 30, configured(mixture("a", "b")).config)
    assert probe_resume(configured(mixture("a", "b", weight=3.0))).tokenizer_differences == ()
    (difference,) = probe_resume(configured(mixture("a", "c"))).tokenizer_differences
    assert difference.startswith("dataset.mixture: ")


def test_resume_names_what_differs(configured, subject):
    checkpoint(subject.output_dir / "checkpoints", 10, subject.config)
    numerics = {"optimizer.weight_decay": 0.5, "optimizer.lr": 0.5, "scheduler.warmup_steps": 9}
    other = configured({SELECTOR: "auto", "model.hidden_size": 384, "trainer.logging_steps": 7} | numerics)
    was = subject.config.model.hidden_size
    found = probe_resume(other)
    assert found.structural_differences == (f"model.hidden_size: {was} in the checkpoint, 384 in this run",)
    assert found.numeric_differences == ("optimizer.weight_decay: 0.01 in the checkpoint, 0.5 in this run",)


def test_resume_reads_the_configs_of_earlier_versions(configured, subject):
    folder = checkpoint(subject.output_dir / "checkpoints", 10, subject.config)
    path = folder / "trainer_state" / "resolved.json"
    for decay, differences in (
        (None, ()),
        (0.9, ("trainer.ema_decay: 0.9 in the checkpoint; the key was removed",)),
    ):
        config = to_dict(subject.config)
        path.write_text(json.dumps(config | {"trainer": config["trainer"] | {"ema_decay": decay}}), "utf-8")
        (folder / "checkpoint.json").unlink()
        seal_checkpoint(folder, 10, "0" * 64, "2026-01-01T00:00:00+00:00")
        for resumed in ({SELECTOR: "auto"}, {"trainer.continue_from": str(folder), "trainer.max_steps": 60}):
            found = probe_resume(configured(resumed))
            assert (found.is_verified, found.structural_differences) == (True, differences)
            assert found.stable_steps is not None
            assert found.numeric_differences == ()


def test_resume_knows_the_keys_of_another_schedule(configured, subject):
    checkpoint(subject.output_dir / "checkpoints", 10, subject.config)
    others = {"optimizer.lr": 0.5, "scheduler.warmup_steps": 9, "trainer.max_epochs": 2.0}
    for changed, is_same in [({"trainer.logging_steps": 7, "trainer.early_stopping_patience": 3}, True)] + [
        ({key: value}, False) for key, value in others.items()
    ]:
        differing = probe_resume(configured({SELECTOR: "auto"} | changed)).schedule_differences
        keys = [] if is_same else list(changed)
        assert [each.partition(":")[0] for each in differing or ()] == keys, changed
    (subject.output_dir / "checkpoints/10/trainer_state/resolved.json").unlink()
    assert probe_resume(configured({SELECTOR: "auto"})).schedule_differences is None
