"""The race of the probes, the levels, software and repository."""

import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from graphlib import TopologicalSorter
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from launcher.io import shadowed_modules
from launcher.preflight.levels import (
    HEAVY_PROBES,
    HOST_PROBES,
    JUDGED,
    default_levels,
    parse_levels,
    probes_for,
)
from launcher.probes import child, disk, git, software
from launcher.probes.collect import RunningProbe, collect
from launcher.probes.disk import probe_disk
from launcher.probes.git import probe_git
from launcher.probes.probe import IncompleteError, Probe, Subject, TimedOutError, UnsupportedError
from neobert.config.schema import RunConfig
from profiles.registry import resolve_run
from validators.facts import ProbeRecord
from validators.finding import Level


@pytest.mark.child
def test_every_host_probe_answers_here(configured, subject):
    facts = collect(HOST_PROBES, configured({"dataset.name": "builtin:python-docs"}))
    assert {record.name: record.status for record in facts.probes} == {
        probe.group: "ok" for probe in HOST_PROBES
    }


def test_a_probe_that_asks_for_time_is_waited_for_and_what_it_does_is_told(subject):
    def measure(at: Subject) -> int:
        at.request_time(30.0, "reading a large file")
        time.sleep(0.6)
        return 5

    reported: list[str] = []
    facts = collect([Probe("git", measure, deadline_s=0.5)], subject, reported.append)
    assert facts.git == 5
    assert reported == ["reading a large file"]


def test_a_probe_that_hangs_in_what_it_asked_time_for_is_given_up(subject):
    release = threading.Event()

    def measure(at: Subject) -> None:
        at.request_time(0.3, "reading a large file")
        release.wait()

    facts = collect([Probe("git", measure, deadline_s=60.0), Probe("disk", probe_disk)], subject)
    release.set()
    assert (facts.git, facts.disk is None) == (None, False)
    assert facts.reason_missing("git") == "timeout: no answer within 0.3 s: reading a large file"
    assert facts.probes[0].duration_s < 30


def test_time_asked_for_too_late_brings_no_probe_back(subject, monkeypatch):
    is_late, has_asked = threading.Event(), threading.Event()

    def late(wait: RunningProbe) -> ProbeRecord:
        is_late.set()
        return ProbeRecord(name=wait.probe.group, status="timeout")

    def measure(at: Subject) -> int:
        is_late.wait()
        at.request_time(60.0, "late")
        has_asked.set()
        return 5

    def work(_: Subject) -> int:
        has_asked.wait()
        return 6

    monkeypatch.setattr("launcher.probes.collect._timeout_record", late)
    reported: list[str] = []
    facts = collect([Probe("git", measure, deadline_s=0.1), Probe("host", work)], subject, reported.append)
    assert (facts.git, facts.host, reported) == (None, 6, [])


def test_heavy_probes_wait_for_the_light_ones_and_for_those_that_they_name(subject):
    running: list[str] = []
    seen: dict[str, list[str]] = {}
    reported: list[str] = []

    def measure(name: str) -> Callable[[Subject], str]:
        def work(_: Subject) -> str:
            running.append(name)
            time.sleep(0.05)
            seen[name] = list(running)
            running.remove(name)
            return name

        return work

    probes = [
        Probe("numerics", measure("numerics"), is_heavy=True, after=("gpu_load", "devices")),
        Probe("host", measure("host")),
        Probe("gpu_load", measure("gpu_load"), is_heavy=True),
    ]
    facts = collect(probes, subject, reported.append)
    assert [record.name for record in facts.probes] == ["numerics", "host", "gpu_load"]
    assert seen == {"host": ["host"], "numerics": ["numerics"], "gpu_load": ["gpu_load"]}
    assert reported == ["measuring gpu load (0 of 2 done)", "measuring numerics (1 of 2 done)"]


def test_heavy_probes_run_together_and_the_last_is_told_when_it_is_alone(subject):
    reported: list[str] = []
    both, release = threading.Barrier(2, timeout=60), threading.Event()

    def meet(_: Subject) -> int:
        number = both.wait()
        release.wait(60)
        return number

    def rehearse(at: Subject) -> list[bool]:
        was_alone = at.is_alone.is_set()
        release.set()
        return [was_alone, at.is_alone.wait(60)]

    probes = [Probe(name, meet, is_heavy=True) for name in ("imports", "inspection")]
    probes.append(Probe("rehearsal", rehearse, is_heavy=True, waits_until_alone=True, after=("gpu_load",)))
    probes.append(Probe("gpu_load", lambda _: 5, is_heavy=True))
    facts = collect(probes, subject, reported.append)
    assert facts.rehearsal == [False, True]
    assert reported == [
        "measuring imports, inspection, gpu load (0 of 4 done)",
        "measuring imports, inspection, rehearsal (1 of 4 done)",
    ]


def test_each_probe_gets_its_own_children(subject):
    def having(name: str) -> Probe:
        return Probe(name, lambda at: at.children, is_heavy=True, children=lambda _: nullcontext([name]))

    facts = collect([having("devices"), having("numerics")], subject)
    assert (facts.devices, facts.numerics) == (["devices"], ["numerics"])


def test_no_heavy_probe_waits_for_one_that_waits_for_it():
    TopologicalSorter({probe.group: probe.after for probe in HEAVY_PROBES}).prepare()


@pytest.mark.child
def test_no_probe_sees_what_another_one_tries_out(tmp_path, monkeypatch):
    """An empty run directory is not occupied, and a clean checkout not dirty, for a trial of the disk."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    folder = tmp_path / "runs" / "empty"
    folder.mkdir(parents=True)
    write = disk._write_and_rename

    def lingering(trial: Path, done: list[str]) -> None:
        write(trial, done)
        time.sleep(0.5)

    monkeypatch.setattr(disk, "_write_and_rename", lingering)
    probes = [probe for probe in HOST_PROBES if probe.group in ("git", "disk", "output")]
    facts = collect(probes, Subject(RunConfig(), folder, tmp_path, code=tmp_path))
    assert facts.git is not None
    assert facts.output is not None
    assert facts.disk is not None
    assert (facts.git.is_dirty, facts.output.is_empty, facts.disk.rename_works) == (False, True, True)


def groups(words: str, needed: tuple[str, ...] = ()) -> list[str]:
    return [probe.group for probe in probes_for(parse_levels(words), needed)]


def test_levels_choose_the_probes():
    assert groups("static", ("imports",)) == []
    assert groups("gpu") == ["software", "gpus", "gpu_health", "gpu_log"]
    assert "gpus" not in groups("static,host")
    assert set(parse_levels("full")) == set(JUDGED)


@pytest.mark.parametrize(
    ("profile", "size_bytes", "more", "is_read"),
    [
        ("gpu", 9, (), True),
        ("gpu", 2**30 + 1, (), False),
        ("gpu", 9, ("dataset.streaming=true",), False),
        ("gpu", None, ("dataset.name=org/text",), False),
        ("cpu", 9, (), False),
        ("cpu", 9, ("task=contrastive",), True),
        ("gpu-smoke", None, (), True),
    ],
)
def test_a_small_text_is_prepared_while_the_gpu_is_measured(profile, size_bytes, more, is_read, tmp_path):
    overrides = list(more)
    if size_bytes is not None:
        text = tmp_path / "text.txt"
        with text.open("wb") as file:
            file.truncate(size_bytes)
        overrides.append(f"dataset.path={text}")
    run = resolve_run(profile=profile, overrides=overrides)
    assert (Level.DATA in default_levels(run)) == is_read


def test_heavy_probes_run_where_a_rule_asks_for_them():
    assert groups("gpu", ("gpu_load", "gpus"))[-1] == "gpu_load"
    assert groups("distributed", ("distributed",))[-1] == "distributed"
    assert "distributed" not in groups("distributed")


@pytest.mark.child
def test_a_child_that_hangs_is_killed_with_all_it_started(tmp_path):
    """A grandchild in a session of its own, as torchrun's workers are."""
    grandchild = tmp_path / "grandchild"
    script = "setsid sleep 600 & echo $! > partial; mv partial grandchild; sleep 600"
    limits_s = iter((0.5, 5.0, 50.0))  # a busy machine needs longer to start both
    while not grandchild.exists():
        limit_s = next(limits_s)
        with pytest.raises(TimedOutError, match=f"sh did not respond within {limit_s:g} s and was killed"):
            child.run_for_text(("sh", "-c", f"cd {tmp_path}; {script}"), limit_s)
    pid = int(grandchild.read_text(encoding="ascii"))
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.child
def test_the_end_of_a_traceback_is_the_file_the_line_and_the_error(tmp_path):
    program = tmp_path / "planted.py"
    program.write_text("def f():\n    return int({}['x'])\n\n\nf()\n", encoding="utf-8")
    line = r"planted\.py\", line 2, in f / return int\(\{\}\['x'\]\) / KeyError: 'x'$"
    with pytest.raises(IncompleteError, match=line):
        child.run_for_text((sys.executable, str(program)), 60)
    with pytest.raises(IncompleteError, match=r"sh: killed by SIGKILL$"):
        child.run_for_text(("sh", "-c", "kill -9 $$"), 60)


INTERRUPTED = """
import sys, threading, time
from pathlib import Path
from launcher.probes.child import run_for_text
from launcher.process import process_tree

process_tree.STARTING_S = 60.0
command = ("sh", "-c", "echo $$ > $0; exec sleep 60", sys.argv[1])
threading.Thread(target=run_for_text, args=(command, 60), daemon=True).start()
while not (Path(sys.argv[1]).exists() and Path(sys.argv[1]).read_text()):
    time.sleep(0.01)
raise KeyboardInterrupt
"""
WITH_A_SLOW_START = """
import subprocess, time

begin = subprocess.Popen.__init__

def slow(*words, **options):
    begin(*words, **options)
    time.sleep(1.0)

subprocess.Popen.__init__ = slow
"""


@pytest.mark.child
@pytest.mark.parametrize("before", ["", WITH_A_SLOW_START])
def test_a_launcher_that_is_interrupted_leaves_no_child_behind(before, tmp_path):
    reported, script = tmp_path / "pid", before + INTERRUPTED
    ended = subprocess.run([sys.executable, "-c", script, str(reported)], capture_output=True, check=False)
    assert b"KeyboardInterrupt" in ended.stderr
    pid = int(reported.read_text())
    try:
        left = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    try:
        assert left.status() == psutil.STATUS_ZOMBIE or psutil.wait_procs([left], timeout=60.0)[0]
    finally:
        with suppress(psutil.NoSuchProcess):
            left.kill()


def test_versions_are_read_without_importing():
    found = software.installed_versions(("pyyaml", "no-such-distribution"))
    assert found.keys() == {"pyyaml"}


def test_pins_are_read(tmp_path):
    path = tmp_path / "constraints.txt"
    path.write_text("# tested\ntorch==2.13.0\nPy_YAML==6.0.3  # c\nloose>=1\n", encoding="utf-8")
    assert software.read_pins(path) == {"torch": "2.13.0", "py-yaml": "6.0.3"}
    assert software.read_pins(tmp_path / "absent.txt") == {}


def test_a_wheel_brings_the_tested_versions(tmp_path, monkeypatch):
    pyproject = tomllib.loads((shadowed_modules.PROJECT_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shared = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    ((source, place),) = shared.items()
    assert (shadowed_modules.PROJECT_ROOT / source).is_file()
    installed = tmp_path / "constraints.txt"
    file = SimpleNamespace(name=Path(place).name, locate=lambda: installed)
    monkeypatch.setattr(software.metadata, "files", lambda _: [SimpleNamespace(name="a.py"), file])
    assert software.find_constraints(tmp_path / "site-packages") == installed
    assert software.find_constraints(shadowed_modules.PROJECT_ROOT) == shadowed_modules.PROJECT_ROOT / source
    monkeypatch.setattr(software.metadata, "files", lambda _: None)
    assert not software.find_constraints(tmp_path / "site-packages").exists()


def test_a_foreign_validators_is_seen(tmp_path):
    foreign = tmp_path / "validators"
    foreign.mkdir()
    (foreign / "__init__.py").touch()
    here = [str(tmp_path), str(shadowed_modules.PROJECT_ROOT)]
    assert shadowed_modules.find_shadowed(here) == {"validators": str(foreign / "__init__.py")}
    assert shadowed_modules.find_shadowed(here[::-1]) == {}


def repository(folder: Path) -> Callable[..., None]:
    def run(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)

    run("init", "-q")
    return run


@pytest.mark.child
def test_a_clean_tree_and_a_changed_one(subject, tmp_path):
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
    (tree / "b.csv").touch()
    changed = probe_git(at)
    assert (changed.is_dirty, changed.diff_saved) == (True, True)
    kept = (tmp_path / "kept.diff").read_text(encoding="utf-8")
    assert "+x = 2" in kept
    assert "# untracked: b.csv" in kept
    assert not probe_git(replace(at, diff_file=None)).diff_saved


@pytest.mark.child
def test_python_files_that_git_does_not_know_are_kept(subject, tmp_path):
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    run = repository(tree)
    (tree / "a.py").write_text("x = 1\n", encoding="utf-8")
    run("add", ".")
    run("commit", "-q", "-m", "one")
    (tree / "a.py").write_text("x = 2\n", encoding="utf-8")
    (tree / "new [ü].py").write_text("y = 1\n", encoding="utf-8")
    index = (tree / ".git" / "index").read_bytes()
    at = replace(subject, folder=tree / "sub", diff_file=tmp_path / "kept.diff")
    first = probe_git(at)
    kept = (tmp_path / "kept.diff").read_text(encoding="utf-8")
    assert all(part in kept for part in ("+x = 2", "+y = 1"))
    assert "# untracked" not in kept
    assert (tree / ".git" / "index").read_bytes() == index
    (tree / "new [ü].py").write_text("y = 2\n", encoding="utf-8")
    assert probe_git(at).diff_sha256 != first.diff_sha256
    run("checkout", "-q", "a.py")
    (tree / "new [ü].py").unlink()
    run("apply", str(tmp_path / "kept.diff"))
    assert (tree / "new [ü].py").read_text(encoding="utf-8") == "y = 2\n"


@pytest.mark.child
def test_the_tree_is_that_of_the_code_where_git_keeps_it(subject, tmp_path):
    code, elsewhere = tmp_path / "code", tmp_path / "elsewhere"
    for folder in (code, elsewhere):
        (folder / "neobert").mkdir(parents=True)
        (folder / "neobert" / "__init__.py").write_text("", encoding="utf-8")
        run = repository(folder)
        run("add", ".")
        run("commit", "-q", "-m", folder.name)
    at = replace(subject, folder=elsewhere, code=code)
    (code / "neobert" / "__init__.py").write_text("x = 1\n", encoding="utf-8")
    assert probe_git(at).is_dirty
    assert not probe_git(replace(at, code=elsewhere)).is_dirty


@pytest.mark.child
def test_code_that_git_ignores_says_nothing_of_its_repository(subject, tmp_path):
    installed = tmp_path / ".venv" / "neobert"
    installed.mkdir(parents=True)
    repository(tmp_path)
    (tmp_path / ".gitignore").write_text(".venv\n", encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    repository(tmp_path / "elsewhere")
    at = replace(subject, folder=tmp_path / "elsewhere", code=installed.parent)
    assert not probe_git(at).is_dirty
    (installed / "__init__.py").touch()
    assert not probe_git(at).is_dirty


@pytest.mark.child
def test_a_tree_without_a_commit(subject, tmp_path):
    repository(tmp_path)
    (tmp_path / "a.py").touch()
    found = probe_git(subject)
    assert (found.is_repository, found.sha, found.is_dirty) == (True, "", True)


@pytest.mark.child
def test_no_repository(subject):
    assert probe_git(subject) == git.NO_REPOSITORY


@pytest.mark.child
def test_no_git(subject, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnsupportedError, match="not installed"):
        probe_git(subject)
