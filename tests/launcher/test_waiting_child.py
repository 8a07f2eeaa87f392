"""A trainer that imports its packages during preflight: what it may do until then, how its wait ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from launcher.preflight import rehearsal_children as rehearsal
from launcher.preflight.rehearsal_children import RehearsalState
from launcher.probes.child import run_waiting_for_json
from launcher.probes.collect import collect
from launcher.probes.probe import IncompleteError, Probe, Subject, TimedOutError
from launcher.process import trainer_process, waiting_child
from launcher.process.trainer_process import Topology
from launcher.process.waiting_child import WaitingChild, start_waiting_child
from launcher.run.launch_context import Launch
from launcher.run.session import start_trainer
from neobert.config.schema import WatchdogConfig
from neobert.errors import ERROR_FILE_ENV

pytestmark = pytest.mark.child

PARTS = rehearsal.PARTS[:-1]  # nothing is compiled, so that there is no helper

PATIENCE_S = 60.0
REPORTING = """
import json, os, sys
import {package}
note = dict(arguments=sys.argv[1:], error=os.environ.get({error!r}), more=os.environ.get("MORE"))
numbers = [number for number in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + number)]
note["files"] = [os.readlink("/proc/self/fd/" + number) for number in numbers]
print(json.dumps(note), flush=True)
"""
PACKAGE = "import pathlib; file = pathlib.Path('part'); file.touch(); file.rename('imported')\n"
LAUNCHER = """
import sys, time
from launcher.process.waiting_child import WaitingChild
child = WaitingChild("reporting", ())
print(child.process.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that writes what it got, in place of the trainer, and a package that it needs."""
    text = REPORTING.format(package="needed", error=ERROR_FILE_ENV)
    (tmp_path / "reporting.py").write_text(text, encoding="utf-8")
    (tmp_path / "needed.py").write_text(PACKAGE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(trainer_process, "TRAINER_MODULE", "reporting")
    monkeypatch.setattr(trainer_process, "TRAINER_PACKAGES", ("needed",))


@pytest.fixture
def child(modules: None) -> Iterator[WaitingChild]:
    with start_waiting_child("reporting", ("needed",)) as each:
        yield each


def reached(condition: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.02)
    return condition()


def launch_with(child: WaitingChild | None, folder: Path) -> Launch:
    (folder / "logs").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "reporting", "resolved.json"]
    return Launch(
        command=command,
        folder=folder,
        topology=Topology(),
        limits=WatchdogConfig(),
        error_file=folder / "error.json",
        waiting=child,
    )


def test_it_imports_at_once_and_starts_with_arguments_variables_log_and_descriptors(child, tmp_path):
    assert reached((tmp_path / "imported").exists)
    held = os.open(tmp_path, os.O_RDONLY)
    started = child.start(["a", "b"], tmp_path / "log", tmp_path / "error.json", (held,), {"MORE": "1"})
    os.close(held)
    assert started is not None
    assert started.wait(PATIENCE_S) == 0
    note = json.loads((tmp_path / "log").read_text())
    assert note["arguments"] == ["a", "b"]
    assert (note["error"], note["more"]) == (str(tmp_path / "error.json"), "1")
    assert str(tmp_path) in note["files"]


def test_until_then_it_has_no_file_of_the_run_and_no_device_open(child, tmp_path):
    assert reached((tmp_path / "imported").exists)
    files = {os.path.realpath(each.path) for each in psutil.Process(child.process.pid).open_files()}
    opened = [os.readlink(each) for each in Path(f"/proc/{child.process.pid}/fd").iterdir()]
    assert [each for each in {*files, *opened} if "nvidia" in each or each.startswith(str(tmp_path))] == []
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".py") in (
        ["__pycache__", "imported"],
        ["imported"],
    )


WARMING = """
import os, pathlib, sys, time
def main(arguments):
    pathlib.Path("warmed").write_text(" ".join(arguments))
    if arguments[0] == "fails":
        raise ValueError("too little memory")
    if arguments[0] == "hangs":
        time.sleep(600)
"""


@pytest.fixture
def warming(modules: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_child, "WARM_UP_S", 0.5 * PATIENCE_S)
    (tmp_path / "warming.py").write_text(WARMING, encoding="utf-8")


@pytest.mark.usefixtures("warming")
def test_it_warms_up_before_it_starts(child, tmp_path):
    child.warm_up("warming", ["resolved.json"])
    assert reached((tmp_path / "warmed").exists)
    assert not (tmp_path / "log").exists()
    started = child.start(["a"], tmp_path / "log", tmp_path / "error.json")
    assert started is child.process
    assert started.wait(PATIENCE_S) == 0
    assert json.loads((tmp_path / "log").read_text())["arguments"] == ["a"]
    assert (tmp_path / "warmed").read_text() == "resolved.json"


@pytest.mark.parametrize("fault", ["fails", "hangs"])
@pytest.mark.usefixtures("warming")
def test_a_process_that_does_not_warm_up_is_replaced(fault, child, tmp_path, monkeypatch):
    if fault == "hangs":
        monkeypatch.setattr(waiting_child, "WARM_UP_S", 2.0)
    child.warm_up("warming", [fault])
    started = start_trainer(launch_with(child, tmp_path), is_restart=False)
    assert started is not child.process
    assert started.wait(PATIENCE_S) == 0
    assert child.process.wait(PATIENCE_S) != 0


def test_it_ends_with_the_block_that_waits(modules, tmp_path):
    with start_waiting_child("reporting", ("needed",)) as child:
        pass
    assert child.process.returncode == -signal.SIGKILL
    assert child.start([], tmp_path / "log", tmp_path / "error.json") is None
    assert not (tmp_path / "log").exists()


def test_it_ends_with_a_launcher_that_is_killed(modules, tmp_path):
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    waits = psutil.Process(int(launcher.stdout.readline()))
    launcher.kill()
    launcher.communicate()
    assert reached(lambda: has_ended(waits))


def test_a_trainer_that_died_while_it_waited_is_started_as_ever(child, tmp_path):
    child.process.kill()
    child.process.wait()
    started = start_trainer(launch_with(child, tmp_path), is_restart=False)
    assert started is not child.process
    assert started.wait(PATIENCE_S) == 0
    assert json.loads((tmp_path / "logs" / "rank_0.log").read_text())["arguments"] == ["resolved.json"]


def test_a_restart_is_a_new_process(child, tmp_path):
    launch = launch_with(child, tmp_path)
    first = start_trainer(launch, is_restart=False)
    assert first is child.process
    assert first.wait(PATIENCE_S) == 0
    again = start_trainer(launch, is_restart=True)
    assert again.wait(PATIENCE_S) == 0
    lines = (tmp_path / "logs" / "rank_0.log").read_text().splitlines()
    assert [json.loads(line)["arguments"] for line in lines] == [
        ["resolved.json"],
        ["resolved.json", "--again"],
    ]


def test_each_part_of_a_rehearsal_has_its_own_process_and_one_that_died_is_replaced(
    modules, tmp_path, monkeypatch, subject
):
    monkeypatch.setattr(rehearsal, "MODULE", "reporting")
    started: list[subprocess.Popen[bytes]] = []

    def measure(subject: Subject) -> None:
        waiting = dict(zip(PARTS, subject.children, strict=True))
        stage = RehearsalState(tmp_path, 1, time.monotonic() + PATIENCE_S, waiting)
        subject.children[1].process.kill()
        subject.children[1].process.wait()
        started.extend(rehearsal.start_part(stage, name) for name in PARTS)
        assert [each.wait(PATIENCE_S) for each in started] == [0, 0, 0]
        one, two, three = (child.process for child in subject.children)
        assert (started[0], started[2]) == (one, three)
        assert started[1] is not two

    probe = Probe("rehearsal", measure, PATIENCE_S, is_heavy=True, children=rehearsal.waiting_children)
    (record,) = collect([probe], subject).probes
    assert (record.status, record.reason) == ("ok", "")
    arguments = [json.loads(line)["arguments"][0] for line in (tmp_path / "log").read_text().splitlines()]
    assert sorted(arguments) == ["fresh", "resumed", "resumed_again"]


def test_a_probe_that_fails_or_an_interrupt_ends_the_children(modules, monkeypatch, subject):
    monkeypatch.setattr(rehearsal, "MODULE", "reporting")
    seen: list[WaitingChild] = []

    def fail(subject: Subject) -> None:
        seen.extend(subject.children)
        raise ValueError("no")

    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    probe = Probe("rehearsal", fail, is_heavy=True, children=rehearsal.waiting_children)
    assert collect([probe], subject).probes[0].status == "incomplete"
    before = {each.pid for each in psutil.Process().children()}
    with pytest.raises(KeyboardInterrupt):
        collect([probe], subject, interrupt)
    codes = [each.process.wait(PATIENCE_S) for each in seen]
    assert len(codes) == len(PARTS)
    assert {*codes} <= {0, -signal.SIGKILL}, "a closed channel ends it too, if it is quicker than the signal"
    assert {each.pid for each in psutil.Process().children()} <= before


def test_a_launch_whose_check_fails_before_its_trainer_starts_leaves_nothing(start_child, tmp_path):
    """Exit code as without a waiting trainer, and no run directory."""
    words = ("--set", "trainer.output_dir=run", "--set", "optimizer.lr=9")
    launch = start_child("train", "-p", "cpu-demo", *words, fake="finish")
    waits: list[psutil.Process] = []

    def has_trainer() -> bool:
        for each in psutil.Process(launch.pid).children():
            with suppress(psutil.Error):  # a probe's child that has just ended
                waits.extend([each] if "fake_trainer" in each.cmdline() else [])
        return bool(waits)

    assert reached(has_trainer)
    out, err = launch.communicate(timeout=PATIENCE_S)
    assert launch.returncode == 1, (out, err)
    assert reached(lambda: has_ended(waits[0])), "it ends with its launcher, perhaps a moment later"
    assert not (tmp_path / "run").exists()


def has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('talk'); print(json.dumps(sys.argv[1:]), end=''); print()", "JSON that is not an object"),
        ("print(json.dumps({'given': sys.argv[1:]}))", {"given": ["3"]}),
        ("print('talk')", "did not print a result as JSON"),
        ("print('out of memory'); sys.exit(1)", "out of memory"),
        ("time.sleep(60)", "did not respond within 2 s"),
    ],
)
def test_a_probe_measures_in_a_process_that_waits_for_it(code, expected, tmp_path, monkeypatch):
    (tmp_path / "measuring.py").write_text(f"import json, sys, time\n{code}\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = WaitingChild("measuring", ("json",))
    try:
        if isinstance(expected, dict):
            assert run_waiting_for_json(child, ("3",), 20.0) == expected
        else:
            kind = TimedOutError if "respond" in expected else IncompleteError
            with pytest.raises(kind, match=expected):
                run_waiting_for_json(child, ("3",), 2.0 if kind is TimedOutError else 20.0)
        assert run_waiting_for_json(child, ("3",), 20.0) is None, "a process measures once"
    finally:
        child.close()
