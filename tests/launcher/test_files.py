"""Hints of files that cannot be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from launcher.io.files import require_writable, results_folder, writing
from neobert.errors import ProjectError


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
    with pytest.raises(ProjectError) as refusal, writing(Path("embeddings.npy")):
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
    with pytest.raises(ProjectError, match="cannot be written: is a device or a pipe, not a file"):
        require_writable(pipe)
    assert [each.name for each in tmp_path.iterdir()] == ["out.json"]
