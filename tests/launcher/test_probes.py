"""The race of the probes, the levels, software and repository."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher import shadow
from launcher.levels import HOST_PROBES, JUDGED, parse_levels, probes_for
from launcher.probes import git, software
from launcher.probes.collect import collect
from launcher.probes.disk import probe_disk
from launcher.probes.git import probe_git
from launcher.probes.probe import IncompleteError, Probe, Subject, UnsupportedError


def test_a_probe_that_hangs_times_out_and_the_others_do_not(subject: Subject) -> None:
    release = threading.Event()
    probes = [Probe("host", lambda _: release.wait()), Probe("disk", probe_disk)]
    started = time.monotonic()
    facts = collect(probes, subject, deadline_s=0.5)
    release.set()
    assert time.monotonic() - started < 5
    assert facts.host is None
    assert facts.disk is not None
    assert facts.reason_missing("host").startswith("timeout: no answer within 0.5 s")


@pytest.mark.parametrize(
    ("error", "record"),
    [
        (UnsupportedError("no driver"), "unsupported: no driver"),
        (IncompleteError("half of it"), "incomplete: half of it"),
        (ZeroDivisionError("oops"), "incomplete: ZeroDivisionError: oops"),
    ],
)
def test_a_probe_that_throws_is_no_fact(error: Exception, record: str, subject: Subject) -> None:
    def throw(_: Subject) -> None:
        raise error

    facts = collect([Probe("git", throw)], subject)
    assert facts.git is None
    assert facts.reason_missing("git") == record


def test_every_host_probe_answers_here(configured: Any, subject: Subject) -> None:
    facts = collect(HOST_PROBES, configured({"dataset.name": "builtin:python-docs"}))
    assert {record.name: record.status for record in facts.probes} == {
        probe.group: "ok" for probe in HOST_PROBES
    }


def test_levels_choose_the_probes() -> None:
    assert probes_for(parse_levels("static")) == ()
    assert [probe.group for probe in probes_for(parse_levels("gpu"))] == ["software", "gpus"]
    assert "gpus" not in {probe.group for probe in probes_for(parse_levels("static,host"))}
    assert set(parse_levels("full")) == set(JUDGED)


def test_versions_are_read_without_importing() -> None:
    found = software.installed_versions(("pyyaml", "no-such-distribution"))
    assert found.keys() == {"pyyaml"}


def test_pins_are_read(tmp_path: Path) -> None:
    path = tmp_path / "constraints.txt"
    path.write_text("# tested\ntorch==2.13.0\nPy_YAML==6.0.3  # c\nloose>=1\n", encoding="utf-8")
    assert software.read_pins(path) == {"torch": "2.13.0", "py-yaml": "6.0.3"}
    assert software.read_pins(tmp_path / "absent.txt") == {}


def test_a_foreign_validators_is_seen(tmp_path: Path) -> None:
    foreign = tmp_path / "validators"
    foreign.mkdir()
    (foreign / "__init__.py").touch()
    here = [str(tmp_path), str(shadow.PROJECT_ROOT)]
    assert shadow.find_shadowed(here) == {"validators": str(foreign / "__init__.py")}
    assert shadow.find_shadowed(here[::-1]) == {}


def repository(folder: Path) -> Callable[..., None]:
    def run(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)

    run("init", "-q")
    return run


def test_a_clean_tree_and_a_changed_one(subject: Subject, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    run = repository(tree)
    (tree / "a.py").write_text("x = 1\n", encoding="utf-8")
    run("add", ".")
    run("commit", "-q", "-m", "one")
    at = replace(subject, folder=tree, diff_file=tmp_path / "kept.diff")
    clean = probe_git(at)
    assert (clean.is_repository, clean.is_dirty, len(clean.sha)) == (True, False, 40)
    assert not (tmp_path / "kept.diff").exists()
    (tree / "a.py").write_text("x = 2\n", encoding="utf-8")
    (tree / "b.py").touch()
    changed = probe_git(at)
    assert (changed.is_dirty, changed.diff_saved) == (True, True)
    kept = (tmp_path / "kept.diff").read_text(encoding="utf-8")
    assert "+x = 2" in kept
    assert "# untracked: b.py" in kept
    assert not probe_git(replace(at, diff_file=None)).diff_saved


def test_a_tree_without_a_commit(subject: Subject, tmp_path: Path) -> None:
    repository(tmp_path)
    (tmp_path / "a.py").touch()
    found = probe_git(subject)
    assert (found.is_repository, found.sha, found.is_dirty) == (True, "", True)


def test_no_repository(subject: Subject) -> None:
    assert probe_git(subject) == git.NO_REPOSITORY


def test_no_git(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnsupportedError, match="not installed"):
        probe_git(subject)
