"""The folder of checkpoints: a save is there or it is not, whatever happens in the middle of it."""

import errno
import hashlib
import io
import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

from neobert.errors import ProjectError
from neobert.runfiles.checkpoint import folders, manifest
from neobert.runfiles.checkpoint.manifest import verify_checkpoint
from neobert.training.checkpoint import publish, retention
from tests.refusals import refusal_of

NOW = "2026-01-01T00:00:00+00:00"
FILES = {"model.safetensors": b"weights" * 50, "trainer_state/state.json": b"{}", "empty": b""}


def fill(folder: Path) -> None:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def save(root: Path, *steps: int) -> None:
    for step in steps:
        publish.publish(root, step, "digest", NOW, fill)


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 24])
def test_a_file_is_hashed_piece_by_piece(size, tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "BUFFER_BYTES", 8)
    content = bytes(range(size))
    (tmp_path / "file").write_bytes(content)
    assert manifest.file_sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="no /proc")
def test_a_file_without_a_size_is_hashed_whole():
    file = Path("/proc/version")
    assert file.stat().st_size == 0
    assert manifest.file_sha256(file) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_auto_starts_afresh_only_where_nothing_was_ever_saved(tmp_path):
    assert folders.find_checkpoint(tmp_path / "none", "auto") is None
    (tmp_path / ".tmp-5-1").mkdir()
    assert folders.find_checkpoint(tmp_path, "auto") is None


def test_auto_never_starts_afresh_over_what_was_only_set_aside(tmp_path):
    """A kill between the resume from another run's earlier step and the first save of this one."""
    save(tmp_path, 10, 20)
    publish.set_aside_after(tmp_path, 5)
    with pytest.raises(ProjectError, match=r"\.superseded-10-0: set aside; \.superseded-20-0") as error:
        folders.find_checkpoint(tmp_path, "auto")
    assert error.value.code == "CKP007"
    assert folders.find_checkpoint(tmp_path, str(tmp_path / ".superseded-20-0"))[1].step == 20
    save(tmp_path, 6)
    assert folders.find_checkpoint(tmp_path, "auto")[1].step == 6


def test_auto_refuses_where_nothing_verifies(tmp_path):
    save(tmp_path, 5, 10)
    (tmp_path / "5" / "empty").unlink()
    (tmp_path / "10" / "empty").unlink()
    with pytest.raises(ProjectError, match=r"10: empty is missing; 5: empty is missing"):
        folders.find_checkpoint(tmp_path, "auto")
    assert {"5", "10"} <= names(tmp_path)


def test_auto_refuses_a_folder_under_another_steps_name(tmp_path):
    save(tmp_path, 5)
    (tmp_path / "5").rename(tmp_path / "7")
    refusal_of(folders.find_checkpoint, "CKP007", "its manifest states step 5", tmp_path, "auto")


@pytest.mark.parametrize("name", ["0100", "00", "+100", "1_00", "100 ", "١٠٠", "²", "100.bak", "-100"])
def test_only_a_step_as_it_is_written_names_a_checkpoint(tmp_path, name):
    save(tmp_path, 5, 100)
    shutil.copytree(tmp_path / "100", tmp_path / name)
    shutil.rmtree(tmp_path / "100")
    assert folders.checkpoint_steps(tmp_path) == [5]
    assert folders.find_checkpoint(tmp_path, "auto")[0].name == "5"
    assert publish.set_aside_after(tmp_path, 5) == []
    save(tmp_path, 110, 120)
    assert retention.remove_old_checkpoints(tmp_path, 2, 0, frozenset()) == [5]
    assert verify_checkpoint(tmp_path / name).step == 100
    assert folders.find_checkpoint(tmp_path, str(tmp_path / name))[1].step == 100


@pytest.mark.parametrize(
    ("selector", "named"),
    [("latest", "no such link to a checkpoint"), ("{root}/7", "available checkpoints: 5")],
)
def test_a_missing_target_is_named_with_what_is_there(tmp_path, selector, named):
    save(tmp_path, 5)
    (tmp_path / "latest").unlink()
    error = refusal_of(folders.find_checkpoint, "CKP007", named, tmp_path, selector.format(root=tmp_path))
    assert "auto" in error.hint


def test_latest_is_a_text_file_where_symlinks_do_not_work(tmp_path, monkeypatch):
    def refuse(*_args):
        raise OSError(errno.EPERM, "no symlinks here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    save(tmp_path, 5, 10)
    assert (tmp_path / "latest").read_text(encoding="utf-8") == "10\n"
    assert folders.find_checkpoint(tmp_path, "latest")[0] == tmp_path / "10"


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe"])
def test_a_pointer_that_a_power_cut_emptied_points_nowhere(tmp_path, content):
    save(tmp_path, 5)
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").write_bytes(content)
    with pytest.raises(ProjectError) as error:
        folders.find_checkpoint(tmp_path, "latest")
    assert error.value.code == "CKP007"
    assert folders.latest_checkpoint(tmp_path) != tmp_path
    save(tmp_path, 10)
    assert folders.find_checkpoint(tmp_path, "latest")[1].step == 10


def test_a_copy_that_followed_the_links_takes_checkpoints(tmp_path, caplog):
    save(tmp_path / "a", 5, 10)
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # `latest` is a folder now
    assert not (tmp_path / "b" / "latest").is_symlink()
    assert folders.find_checkpoint(tmp_path / "b", "latest")[1].step == 10
    save(tmp_path / "b", 15)
    assert folders.find_checkpoint(tmp_path / "b", "latest")[1].step == 15
    assert names(tmp_path / "b") == {"5", "10", "15", "latest", ".copy-latest-0"}
    assert "renamed it to .copy-latest-0" in caplog.text


def test_a_checkpoint_that_verified_is_one_whether_a_pointer_can_be_moved_or_not(
    tmp_path, monkeypatch, caplog
):
    save(tmp_path, 5)
    monkeypatch.setattr(Path, "symlink_to", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    save(tmp_path, 10)
    assert folders.find_checkpoint(tmp_path, "auto")[1].step == 10
    assert "checkpoint 10 is complete, but the link latest" in caplog.text


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_auto_passes_by_what_the_file_system_cannot_read(tmp_path, monkeypatch, number):
    save(tmp_path, 5, 10)
    real = Path.stat

    def stat_of(path, **how):
        if path == tmp_path / "10" / "model.safetensors":
            raise OSError(number, os.strerror(number))
        return real(path, **how)

    monkeypatch.setattr(Path, "stat", stat_of)
    found, (rejected,) = folders.find_checkpoint_and_rejected(tmp_path, "auto")
    assert found[1].step == 5
    assert f"model.safetensors cannot be read: [Errno {number}]" in rejected.reason


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("selector", ["auto", "named"])
def test_what_this_user_may_not_read_is_refused_and_not_passed_by(tmp_path, monkeypatch, name, selector):
    save(tmp_path, 5, 10)
    closed, real = tmp_path / "10" / name, io.open

    def opening(path, *how, **more):
        if path == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *how, **more)

    monkeypatch.setattr(io, "open", opening)
    with pytest.raises(ProjectError, match="this user has no read permission for this file") as error:
        folders.find_checkpoint_and_rejected(tmp_path, "auto" if selector == "auto" else str(tmp_path / "10"))
    assert error.value.place == str(closed)
    assert names(tmp_path) == {"5", "10", "latest"}


def refuse_syncs(monkeypatch, number, *, of_folders):
    """Have the file system refuse to sync folders, or files, and to take advice of anything."""
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == of_folders:
            raise OSError(number, os.strerror(number))
        return real(descriptor)

    def take_no_advice(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "posix_fadvise", take_no_advice)
    manifest._warn_unsynced.cache_clear()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EACCES])
def test_a_file_system_that_syncs_no_folders_takes_checkpoints_and_says_so_once(
    tmp_path, monkeypatch, caplog, number
):
    refuse_syncs(monkeypatch, number, of_folders=True)
    save(tmp_path, 5, 10)
    assert folders.find_checkpoint(tmp_path, "latest")[1].step == 10
    assert caplog.text.count("does not sync folders") == 1


@pytest.mark.parametrize(
    ("number", "of_folders"),
    [
        (errno.EIO, True),
        (errno.ENOSPC, True),
        (errno.EIO, False),
        (errno.ENOSPC, False),
        (errno.EINVAL, False),
    ],
)
def test_what_is_not_durable_is_no_checkpoint(tmp_path, monkeypatch, number, of_folders):
    save(tmp_path, 5)
    refuse_syncs(monkeypatch, number, of_folders=of_folders)
    with pytest.raises(ProjectError, match=os.strerror(number)):
        save(tmp_path, 10)
    assert folders.find_checkpoint(tmp_path, "auto")[1].step == 5


def test_what_lies_ahead_is_set_aside_and_never_deleted(tmp_path):
    save(tmp_path, 5, 10, 15)
    assert publish.set_aside_after(tmp_path, 5) == [10, 15]
    assert names(tmp_path) == {"5", "latest", ".superseded-10-0", ".superseded-15-0"}
    assert folders.find_checkpoint(tmp_path, "latest")[1].step == 5
    save(tmp_path, 10)
    publish.set_aside_after(tmp_path, 5)
    assert ".superseded-10-1" in names(tmp_path)
    publish.delete_temporary_files(tmp_path)
    assert ".superseded-10-0" in names(tmp_path)


def test_a_kill_at_any_point_of_a_save_costs_that_save_at_most(tmp_path):
    points = killed_save(tmp_path / "whole", 255)
    assert points >= 10
    assert verify_checkpoint(tmp_path / "whole" / "10")
    for deadline in range(points):
        root = tmp_path / str(deadline)
        save(root, 5)
        assert killed_save(root, deadline) == -signal.SIGKILL
        assert folders.find_checkpoint(root, "auto")[1].step in (5, 10)
        assert folders.find_checkpoint(root, "latest")[1].step in (5, 10)
        resumed = folders.find_checkpoint(root, "auto")[1].step
        publish.delete_temporary_files(root)
        publish.set_aside_after(root, resumed)
        assert folders.find_checkpoint(root, "latest")[1].step == resumed
        save(root, 15)
        assert folders.find_checkpoint(root, "auto")[1].step == 15
        assert names(root) <= {"5", "10", "15", "latest"}, deadline


def killed_save(root: Path, deadline: int) -> int:
    """Save step 10 in a child that dies after some points; return how many it passed, or how it died."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    passed = 0

    def dying(real):
        def call(*args, **kwargs):
            nonlocal passed
            passed += 1
            if passed > deadline:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    try:
        os.fsync = dying(os.fsync)
        for name in ("rename", "replace", "symlink_to", "write_text", "write_bytes"):
            setattr(Path, name, dying(getattr(Path, name)))
        save(root, 10)
    finally:
        os._exit(passed)
