"""Identity of a run at its trackers: one for all sessions of a run, another one for another run."""

import re

import pytest

from neobert.trackers.identity import FILE, run_identity


def test_later_sessions_have_the_identity_of_the_first(tmp_path):
    first = run_identity(tmp_path, 0)
    assert re.fullmatch("[0-9a-f]{16}", first)
    assert run_identity(tmp_path, 10) == run_identity(tmp_path, 20) == first


def test_a_run_from_step_0_is_a_new_run(tmp_path):
    assert run_identity(tmp_path, 0) != run_identity(tmp_path, 0)


def test_a_directory_that_was_moved_keeps_it(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    first = run_identity(before, 0)
    before.rename(after)
    assert run_identity(after, 10) == first


@pytest.mark.parametrize("content", [None, b"", b"../../x\n", b"\xff\xfe", b"0" * 17])
def test_without_a_readable_one_there_is_a_new_one(content, tmp_path):
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    first = run_identity(tmp_path, 10)
    assert run_identity(tmp_path, 20) == first
    assert (tmp_path / FILE).read_text() == f"{first}\n"
