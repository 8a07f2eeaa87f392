"""The run directory: one launch at a time, nothing deleted, and everything a later reader needs."""

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.commands import train
from launcher.commands.selection import Selection
from launcher.preflight.examination import examine
from launcher.preflight.levels import QUICK
from launcher.preflight.receipts import Examination
from launcher.process.trainer_process import Topology
from launcher.run import launch_records
from launcher.run.launch_records import RUN_FILES, move_aside, record_trainer, write_manifest, write_run
from launcher.rundir import directory
from launcher.rundir.directory import is_alive, lock_run_directory, take_over
from neobert.config import digest, from_dict
from neobert.errors import ProjectError
from profiles.registry import ResolvedRun
from tests.refusals import refusal_of
from validators.finding import Level


def test_a_launch_that_waits_for_another_names_it_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(directory, "LOCK_TIMEOUT_S", 0.1)
    with lock_run_directory(tmp_path), pytest.raises(ProjectError, match="another command still uses"):
        lock_run_directory(tmp_path).__enter__()
    write_manifest(tmp_path, {"hostname": socket.gethostname()}, {})
    record_trainer(tmp_path, os.getpid())
    with lock_run_directory(tmp_path), pytest.raises(ProjectError, match=f"process {os.getpid()} still uses"):
        lock_run_directory(tmp_path).__enter__()
    out, err = capsys.readouterr()
    wait = f"uses {tmp_path}: waiting up to 0.1 s for it to end"
    assert not out
    assert err.splitlines() == [f"another command {wait}", f"process {os.getpid()} {wait}"]


@pytest.mark.child
def test_a_child_that_keeps_the_descriptor_keeps_the_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "LOCK_TIMEOUT_S", 0.1)
    with lock_run_directory(tmp_path) as held:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=(held,))
    with pytest.raises(ProjectError, match="still uses"), lock_run_directory(tmp_path):
        pass
    child.kill()
    child.wait()
    with lock_run_directory(tmp_path):
        pass


@pytest.fixture
def is_waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set when a launch says that it waits for another."""
    event = threading.Event()
    monkeypatch.setattr(directory.console, "log", lambda _: event.set())
    return event


def moved_while_held(folder: Path, is_waiting: threading.Event, *, is_replaced: bool) -> Path:
    """Hold a directory until another launch waits for it, then move it aside and end."""
    folder.mkdir()
    first = lock_run_directory(folder)
    first.__enter__()

    def move_and_end() -> None:
        is_waiting.wait()
        folder.rename(folder.with_name("old"))
        if is_replaced:
            folder.mkdir()
        first.__exit__(None, None, None)

    threading.Thread(target=move_and_end, daemon=True).start()
    return folder


def test_a_hold_is_on_the_directory_that_has_the_name(tmp_path, is_waiting):
    folder = moved_while_held(tmp_path / "run", is_waiting, is_replaced=True)
    with lock_run_directory(folder) as held:
        assert os.fstat(held).st_ino == folder.stat().st_ino


def test_a_directory_that_vanishes_while_it_is_waited_for(tmp_path, is_waiting):
    folder = moved_while_held(tmp_path / "run", is_waiting, is_replaced=False)
    with pytest.raises(ProjectError, match="removed or moved aside") as refused, lock_run_directory(folder):
        pass
    assert (refused.value.code, refused.value.exit_code) == ("run-vanished", 1)
    with pytest.raises(ProjectError, match="cannot be opened"), lock_run_directory(Path("/dev/null/run")):
        pass


def earlier_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "resolved.json").write_text("{}", encoding="utf-8")
    (folder / "metrics.jsonl").write_text('{"step": 0}\n', encoding="utf-8")
    return folder


@pytest.mark.child
def test_a_run_that_another_launch_began_meanwhile_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "LOCK_TIMEOUT_S", 0.1)
    folder, holds = tmp_path / "run", ExitStack()

    def be_slow(_: train.TrainRequest, resolved: ResolvedRun, staging: Path, _trainer: object) -> Examination:
        examination = examine(resolved, (Level.STATIC,), folder=staging)
        earlier_run(folder)
        holds.enter_context(lock_run_directory(folder))
        return examination

    monkeypatch.setattr(train, "_run_checks", be_slow)
    monkeypatch.setattr(train, "supervise", lambda *_: pytest.fail("a trainer was started"))
    requested = train.TrainRequest(
        Selection("cpu-demo", (), (f"trainer.output_dir={folder}",)), Topology(), dry_run=False, strict=False
    )
    with holds, pytest.raises(ProjectError) as caught:
        train.run(requested, "json")
    assert caught.value.code == "run-in-progress"
    assert (folder / "metrics.jsonl").is_file()
    assert not list(tmp_path.glob("run.old-*"))


@pytest.mark.parametrize("is_resumed", [True, False])
def test_a_folder_that_no_launch_made_is_left_alone(tmp_path, *, is_resumed):
    (tmp_path / "thesis.tex").touch()
    refusal_of(move_aside, "CKP008", "not a run directory", tmp_path, is_resumed=is_resumed)
    assert (tmp_path / "thesis.tex").exists()


@pytest.fixture
def written(tmp_path: Path, run_file: Any) -> Path:
    given = run_file("# mine\nprofile: cpu-demo\ntrainer:\n  max_steps: 9\n")
    selection = Selection(None, (given,), ("seed=3", f"trainer.output_dir={tmp_path}/run"))
    staging = tmp_path / "staging"
    staging.mkdir()
    (staging / "working-tree.diff").write_text("+x\n", encoding="utf-8")
    examination = examine(selection.resolve(), QUICK, folder=None)
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    take_over(folder)
    (folder / "outcome.json").write_text('{"status": "failed"}', encoding="utf-8")
    write_run(examination, selection.files, folder, staging, {"command": ["python"]})
    return folder


def test_all_that_is_promised_is_written(written):
    assert all((written / name).exists() for name in RUN_FILES)
    given = (written / "config.yaml").read_text(encoding="utf-8")
    assert given.startswith(f"{launch_records.RUN_FILE_HEADING}# mine\n")
    manifest = json.loads((written / "manifest.json").read_text(encoding="utf-8"))
    config = from_dict(json.loads((written / "resolved.json").read_text(encoding="utf-8")))
    assert manifest["config_digest"] == digest(config)
    assert manifest["overrides"][0] == "seed=3"
    assert {"argv", "hostname", "packages", "python", "code_version", "git_sha"} <= manifest.keys()


def test_several_run_files_are_all_kept(written, tmp_path):
    files = [tmp_path / name for name in ("a.yaml", "b.toml", "c.yaml")]
    for file in files:
        file.write_text(f"# {file.name}\n", encoding="utf-8-sig")
    launch_records._write_run_files(Selection("cpu-demo", (), ()).resolve(), files, written)
    heading = launch_records.RUN_FILE_HEADING
    kept = {
        path.name: path.read_text(encoding="utf-8").removeprefix(heading) for path in written.glob("config*")
    }
    assert kept == {"config.yaml": "# c.yaml\n", "config_2.toml": "# b.toml\n", "config_1.yaml": "# a.yaml\n"}


def test_every_value_has_its_origin(written):
    origins = json.loads((written / "provenance.json").read_text(encoding="utf-8"))
    assert origins["seed"]["kind"] == "override"
    assert (origins["trainer.max_steps"]["kind"], origins["trainer.max_steps"]["line"]) == ("file", 4)
    assert origins["model.hidden_size"]["kind"] == "profile"
    assert origins["wandb.project"]["kind"] == "default"


def test_earlier_launches_are_kept(tmp_path):
    for number in range(3):
        write_manifest(tmp_path, {"number": number}, {"step": number - 1})
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["number"] == 2
    assert [(one["number"], one["outcome"]["step"]) for one in manifest["earlier"]] == [(0, 0), (1, 1)]


def test_alive_or_not(tmp_path):
    write_manifest(tmp_path, {"hostname": os.uname().nodename}, {})
    record_trainer(tmp_path, os.getpid())
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    assert is_alive(manifest) is True
    assert is_alive({**manifest, "trainer_started_after_boot_s": 1.0}) is False
    assert is_alive({**manifest, "trainer_pid": 2**22 + 1}) is False
    assert is_alive({**manifest, "hostname": "elsewhere"}) is None


def test_a_clock_that_is_set_anew_ends_no_trainer(tmp_path, monkeypatch):
    write_manifest(tmp_path, {"hostname": os.uname().nodename}, {})
    record_trainer(tmp_path, os.getpid())
    boot_s = psutil.boot_time()
    monkeypatch.setattr("psutil._psplatform.boot_time", lambda: boot_s + 3600)
    assert is_alive(json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))) is True


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    error = refusal_of(write_manifest, "not-writable", "No space left on device", tmp_path, {}, {})
    assert error.exit_code == 1
    assert list(tmp_path.iterdir()) == []
