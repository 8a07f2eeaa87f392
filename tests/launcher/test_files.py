"""Hints of files that cannot be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from launcher.io.files import writing
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
def test_space_is_suggested_for_a_full_disk_only(number: int, hint: str) -> None:
    with pytest.raises(ProjectError) as refusal, writing(Path("embeddings.npy")):
        raise OSError(number, os.strerror(number))
    assert refusal.value.hint == hint
