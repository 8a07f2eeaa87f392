"""Probe of the imports: an installed file that was edited by hand has another digest."""

import os
import sys

import pytest

from neobert.probes.hardware.imports import import_error, loaded_files_digest


def test_an_edit_in_place_of_an_imported_file_changes_the_digest(tmp_path, monkeypatch):
    file = tmp_path / "installed_by_hand.py"
    file.write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    forget("installed_by_hand", monkeypatch)
    unloaded = loaded_files_digest()
    assert not import_error("installed_by_hand")
    before = loaded_files_digest()
    assert before != unloaded
    assert loaded_files_digest() == before
    found = file.stat()
    file.write_text("VALUE = 2\n")
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert loaded_files_digest() != before


def test_a_module_whose_file_is_gone_counts_as_gone(tmp_path, monkeypatch):
    file = tmp_path / "gone_by_now.py"
    file.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    forget("gone_by_now", monkeypatch)
    assert not import_error("gone_by_now")
    before = loaded_files_digest()
    file.unlink()
    assert loaded_files_digest() != before


def forget(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a module be imported again if this process has run the test before."""
    monkeypatch.delitem(sys.modules, name, raising=False)
