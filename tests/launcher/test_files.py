"""Hints of files that cannot be written."""

import errno
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from launcher.io.files import convert_write_errors, make_folder, require_writable, results_folder
from neobert.errors import ProjectError
from neobert.runfiles.checkpoint.manifest import seal_checkpoint, verify_checkpoint


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "free space, or choose another folder"),
        (errno.EDQUOT, "free space, or choose another folder"),
        (errno.EROFS, "choose another folder"),
        (errno.EACCES, "choose another folder"),
        (errno.EISDIR, "choose another folder"),
    ],
)
def test_space_is_suggested_for_a_full_disk_only(number, hint):
    with pytest.raises(ProjectError) as refusal, convert_write_errors(Path("embeddings.npy")):
        raise OSError(number, os.strerror(number))
    assert refusal.value.hint == hint


@results_folder(Path("out"))
def write_in_vain() -> None:
    Path("out/scores.npy").touch()
    raise KeyError


def test_a_folder_of_results_stays_if_anything_is_in_it():
    with pytest.raises(KeyError):
        write_in_vain()
    assert Path("out/scores.npy").exists()


def test_a_pipe_is_not_replaced_by_a_file(tmp_path):
    os.mkfifo(pipe := tmp_path / "out.json")
    with pytest.raises(ProjectError, match="cannot be written: it is a device or a pipe, not a file"):
        require_writable(pipe)
    assert [each.name for each in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("checkpoints/latest/scores.csv", "the folder is a checkpoint, which may contain"),
        ("checkpoints/20/new/scores.csv", "the folder is a checkpoint, which may contain"),
        ("metrics.jsonl", "the file is a record of the run"),
        ("scores.jsonl", ""),
    ],
)
def test_results_do_not_spoil_a_run(tmp_path, name, problem):
    checkpoint = tmp_path / "checkpoints" / "20"
    checkpoint.mkdir(parents=True)
    (tmp_path / "checkpoints" / "latest").symlink_to("20")
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    seal_checkpoint(checkpoint, 20, "digest", "now")
    (tmp_path / "resolved.json").touch()
    with pytest.raises(ProjectError, match=problem) if problem else nullcontext():
        make_folder((tmp_path / name).parent)
        require_writable(tmp_path / name)
    verify_checkpoint(checkpoint)
