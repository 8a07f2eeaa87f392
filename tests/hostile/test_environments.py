"""Surroundings that nobody planned for: each ends in the right code and one sentence, or changes nothing."""

import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.io.files import write_text
from launcher.probes import git
from launcher.probes.git import probe_git
from launcher.probes.probe import Subject
from neobert.config import key_suggestions
from tests.launcher.test_probes import repository

PYTHON_FILES = '[core]\n  attributesFile = {home}/attributes\n[diff "py"]\n'
SETTINGS = {
    "a diff program": "[diff]\n  external = /bin/true\n",
    "a program for Python files": PYTHON_FILES + "  command = /bin/true\n",
    "a text converter": PYTHON_FILES + "  textconv = /bin/true\n",
    "colours": "[color]\n  ui = always\n  diff = always\n  status = always\n",
    "no prefixes": "[diff]\n  noprefix = true\n",
    "other prefixes": "[diff]\n  mnemonicPrefix = true\n",
    "less context": "[diff]\n  context = 0\n  algorithm = patience\n",
    "raw names": "[core]\n  quotePath = false\n",
    "no untracked files": "[status]\n  showUntrackedFiles = no\n",
    "a file monitor": "[core]\n  fsmonitor = {home}/planted\n",
    "hooks": "[core]\n  hooksPath = {home}/hooks\n",
}
"""What a person may have in `~/.gitconfig`."""

VARIABLES = {
    "GIT_EXTERNAL_DIFF": "/bin/true",
    "GIT_DIFF_OPTS": "--unified=0",
    "GIT_DIR": "/nonexistent",
    "GIT_WORK_TREE": "/",
    "GIT_INDEX_FILE": "/nonexistent",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_PAGER": "false",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with attributes, and with programs that leave a trace when they run."""
    home = tmp_path / "home"
    (home / "hooks").mkdir(parents=True)
    (home / "attributes").write_text("*.py diff=py\n")
    for program in (home / "planted", home / "hooks" / "post-index-change"):
        program.write_text(f"#!/bin/sh\ntouch {home}/RAN\n")
        program.chmod(0o755)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
    return home


@pytest.fixture
def changed(subject: Subject, tmp_path: Path, home: Path) -> Subject:
    """A repository with a changed file, a new one and one of another kind."""
    tree = tmp_path / "tree"
    tree.mkdir()
    run = repository(tree)
    (tree / "a.py").write_text("".join(f"x{line} = 1\n" for line in range(9)))
    run("add", ".")
    run("commit", "-q", "-m", "one")
    (tree / "a.py").write_text("".join(f"x{line} = {line}\n" for line in range(9)))
    (tree / "new.py").write_text("y = 1\n")
    (tree / "ü.csv").touch()
    return replace(subject, folder=tree, diff_file=tmp_path / "kept.diff")


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_git_change_no_digest(name, changed, home):
    without = probe_git(changed)
    (home / ".gitconfig").write_text(SETTINGS[name].format(home=home))
    assert probe_git(changed) == without
    assert not (home / "RAN").exists()
    (changed.folder / "a.py").write_text("another edit\n")
    assert probe_git(changed).diff_sha256 != without.diff_sha256


def test_variables_of_git_change_no_digest(changed, monkeypatch):
    without = probe_git(changed)
    assert changed.diff_file is not None
    kept = changed.diff_file.read_bytes()
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    assert probe_git(changed) == without
    assert changed.diff_file.read_bytes() == kept
    assert b"+y = 1" in kept


def test_an_edit_in_the_instant_of_the_last_add_is_kept(changed, monkeypatch):
    """Same size and same time as in the index: only the index's own time says that it has to be read."""
    settings = tuple(each for each in git.SETTINGS if "ctime" not in each)  # a test cannot set that time
    monkeypatch.setattr(git, "SETTINGS", (*settings, "core.trustctime=false"))
    file, index = changed.folder / "a.py", changed.folder / ".git" / "index"
    at = 1_700_000_000
    os.utime(file, (at, at))
    subprocess.run(["git", "-C", str(changed.folder), "add", "a.py"], check=True)
    os.utime(index, (at, at))
    before = probe_git(changed)
    file.write_text(file.read_text().replace("x1", "z1"))
    os.utime(file, (at, at))
    assert probe_git(changed).diff_sha256 != before.diff_sha256


def test_a_link_under_the_name_of_a_temporary_file_is_not_followed(tmp_path):
    victim, target = tmp_path / "victim", tmp_path / "facts.json"
    victim.write_text("precious")
    (tmp_path / f".facts.json.{os.getpid()}").symlink_to(victim)
    write_text(target, "facts")
    assert (victim.read_text(), target.read_text()) == ("precious", "facts")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["facts.json", "victim"]


NO_HOME = ("HOME", "XDG_CACHE_HOME", "NEOBERT_CACHE", "HF_HOME")


def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that runs under any user id: no HOME, no line in /etc/passwd."""
    for name in NO_HOME:
        monkeypatch.delenv(name, raising=False)

    def unknown(number: int) -> Any:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_no_home_directory_is_found_by_preflight(command, monkeypatch):
    homeless(monkeypatch)
    words = ("preflight", "-p", "cpu-demo", "--level", "host", "--output-format", "json")
    answer = command(*words)
    checks = {check["id"]: check["status"] for check in answer.json["checks"]}
    assert (answer.code, checks["DAT009"]) == (1, "fail")
    assert "unknown" not in checks.values()
    (finding,) = (each for each in answer.json["findings"] if each["code"] == "DAT009")
    assert finding["hint"] == "set NEOBERT_CACHE or dataset.cache_dir to a writable folder"
    monkeypatch.setenv("NEOBERT_CACHE", "cache")
    assert command(*words).code == 0


UNSHARE = ("unshare", "--user", "--map-user=12345", "--map-group=12345")


@pytest.mark.e2e
@pytest.mark.skipif(
    bool(
        shutil.which("unshare") is None or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode
    ),
    reason="this machine lets nobody take another user id",
)
def test_no_home_directory_is_one_sentence(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name not in NO_HOME}
    answer = subprocess.run(
        [*UNSHARE, sys.executable, "-m", "launcher", "data", "prepare", "-p", "cpu-demo"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert answer.stderr.startswith(
        "error: the default cache folder is ~/.cache/neobert, but this user has no home directory"
    )
    assert answer.stderr.count("\n") == 2


def test_thousands_of_unknown_keys_cost_no_minutes(command, run_file, monkeypatch):
    """Comparing spellings is what takes time, so the comparisons are counted: a clock depends on the load."""
    compared = []
    real = key_suggestions.correct_spelling
    monkeypatch.setattr(
        key_suggestions, "correct_spelling", lambda *a, **k: compared.append(1) or real(*a, **k)
    )
    keys = "".join(f"  key_{number}: {number}\n" for number in range(5_000))
    answer = command("lint", run_file(f"profile: cpu-demo\ntrainer:\n{keys}"))
    assert answer.code == 1
    assert "fail: 201 fail" in answer.out
    assert 0 < len(compared) < 1_000


@pytest.mark.e2e
def test_a_locale_without_umlauts_is_named():
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    answer = subprocess.run(
        [sys.executable, "-m", "launcher", "plan", "-p", "cpu-demo", "--set", "trainer.output_dir=läufe"],
        env={**os.environ, **ascii_only},
        capture_output=True,
        check=False,
    )
    assert answer.returncode == 2
    assert b"CFG003 wrong-value: text cannot be decoded in the locale's encoding ascii" in answer.stderr
    assert b"= hint: set PYTHONUTF8=1, or LC_ALL=C.UTF-8" in answer.stderr


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("preflight", "-p", "cpu-demo", "--level", "static", "--output", "/proc/none"), "/proc/none"),
        (("tokenizer", "train", "-p", "cpu-demo", "-o", "/proc/none/tok"), "/proc/none"),
        (("bench", "-p", "cpu-demo", "--output", "/proc/none/x"), "/proc/none/x"),
    ],
    ids=["preflight --output", "tokenizer train", "bench --output"],
)
def test_a_place_that_takes_no_file_is_one_sentence(words, place, command):
    answer = command(*words)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {place}: this path cannot be written: ")
    assert answer.err.count("\n") == 2
