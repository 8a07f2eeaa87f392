"""The folder of compiled graphs: whose it is, and which code it belongs to."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.process import compile_cache
from launcher.process.compile_cache import FOLDER_ENV, code_digest, compile_cache_environment
from launcher.process.trainer_process import child_environment
from neobert.errors import ProjectError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(FOLDER_ENV, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "neobert" / "compiled"


def test_every_child_gets_a_folder_that_only_the_user_can_open(folder):
    given = child_environment(Path(os.devnull))
    assert given[FOLDER_ENV] == str(folder / code_digest())
    assert folder.stat().st_mode & 0o777 == 0o700


def test_graphs_of_versions_that_were_not_used_for_a_month_are_removed(folder):
    ages_days = {"0" * 16: 31, "1" * 16: 29, code_digest(): 365, "mine": 365}
    for name, age_days in ages_days.items():
        (folder / name / "triton").mkdir(parents=True)
        os.utime(folder / name, (time.time() - 86_400 * age_days,) * 2)
    folder.chmod(0o700)
    compile_cache_environment()
    assert {entry.name for entry in folder.iterdir()} == {"1" * 16, code_digest(), "mine"}
    compile_cache_environment()
    assert (folder / code_digest()).is_dir(), "its launch made it new"


def test_a_link_in_the_place_of_a_version_is_not_followed(folder, tmp_path):
    others = tmp_path / "others"
    (others / "kept").mkdir(parents=True)
    folder.mkdir(parents=True, mode=0o700)
    (folder / ("2" * 16)).symlink_to(others)
    os.utime(others, (0, 0))
    compile_cache_environment()
    assert (others / "kept").is_dir()


def test_a_folder_that_the_user_names_is_left_alone(monkeypatch, folder):
    monkeypatch.setenv(FOLDER_ENV, "/scratch/graphs")
    assert compile_cache_environment() == {}
    assert child_environment(Path(os.devnull))[FOLDER_ENV] == "/scratch/graphs"
    assert not folder.exists()


def others_may_write(folder: Path, _: Any) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o770)


def is_a_link(folder: Path, _: Any) -> None:
    folder.parent.mkdir(parents=True)
    (folder.parent / "elsewhere").mkdir()
    folder.symlink_to("elsewhere")


def is_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


@pytest.mark.parametrize(
    ("plant", "reason"),
    [
        (others_may_write, r"can be written to by other users \(mode 770\)"),
        (is_a_link, "is not a folder"),
        (is_of_another_user, r"belongs to user \d+, not to \d+"),
    ],
)
def test_a_folder_that_another_user_could_have_filled_is_refused(plant, reason, folder, monkeypatch):
    plant(folder, monkeypatch)
    with pytest.raises(ProjectError, match=reason) as raised:
        compile_cache_environment()
    assert str(folder) in raised.value.hint


def test_without_a_home_that_can_be_written_torch_decides(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compile_cache_environment() == {}


def test_another_gradient_is_another_folder(tmp_path):
    """torch's key has the operator's name only: with one folder, the graph with the old gradient is found."""
    kernel = tmp_path / "kernels" / "pointwise.py"
    kernel.parent.mkdir()
    digests = []
    for text in ("return 2 * grad", "return 3 * grad"):
        kernel.write_text(text, encoding="utf-8")
        compile_cache.code_digest.cache_clear()
        digests.append(code_digest(tmp_path))
    assert len(set(digests)) == 2
    compile_cache.code_digest.cache_clear()
