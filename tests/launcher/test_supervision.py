"""Sessions of a child that is quick to start: what is tried again, what is not, and what is left of them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from launcher.io.files import convert_write_errors
from launcher.process import process_tree, trainer_process
from launcher.process.process_tree import (
    AGENT,
    STARTED_BY_AGENT,
    dump_stacks,
    kill_tree,
    stop_orphaned_ranks,
    stop_then_kill,
)
from launcher.process.signal_forwarding import forward_signals
from launcher.process.trainer_process import Topology
from launcher.run.launch_context import Deadline, Launch
from launcher.run.session import _exit_code_without_wait
from launcher.run.summary import Summary
from launcher.run.supervision import supervise
from launcher.rundir.records import read_json
from launcher.rundir.stalls import AwakeClock
from neobert.config.schema import WatchdogConfig
from neobert.errors import ProjectError
from neobert.runfiles.run_dir import stacks_path

pytestmark = pytest.mark.child

PATIENT = WatchdogConfig(
    start_limit_s=60, step_limit_s=60, learned_floor_s=60, grace_s=0.2, heartbeat_interval_s=0.1
)
TIGHT = replace(PATIENT, step_limit_s=0.5, learned_floor_s=0.5)
"""For children that hang after a step; a child of any other kind may be slow to be scheduled."""
# It writes one heartbeat, and then does what the test says; `again` and `number` tell the sessions apart.
PROGRAM = """
import faulthandler, json, os, pathlib, signal, sys, time
run, again = pathlib.Path({folder!r}), "--again" in sys.argv
count = run / "count"
number = len(count.read_text()) if count.exists() else 0
count.write_text("." * (number + 1))
stacks = open(run / "logs" / "rank_0.stacks", "ab", buffering=0)
faulthandler.register(signal.SIGUSR2, stacks)
def beat(step, phase="train"):
    row = {{"seq": number * 100 + step, "phase": phase, "step": step, "last_progress_step": step}}
    with open(run / "heartbeat_rank0.jsonl", "a") as file:
        file.write(json.dumps(row) + "\\n")
def end(status, code, step, message=""):
    told = {{"status": status, "exit_code": code, "step": step, "message": message}}
    (run / "outcome.json").write_text(json.dumps(told))
    sys.exit(code)
"""


@pytest.fixture
def launched(tmp_path: Path) -> Callable[..., Summary]:
    (tmp_path / "logs").mkdir()

    def run(
        program: str,
        *,
        limits: WatchdogConfig = PATIENT,
        deadlines: tuple[Deadline, ...] = (),
        owns_run: bool = True,
        **how: Any,
    ) -> Summary:
        text = PROGRAM.format(folder=str(tmp_path)) + program
        launch = Launch(
            command=[sys.executable, "-c", text, trainer_process.TRAINER_MODULE],
            folder=tmp_path,
            topology=Topology(**how),
            limits=limits,
            error_file=tmp_path / "error.json",
            deadlines=deadlines,
            owns_run=owns_run,
        )
        with forward_signals() as forwarder:
            return supervise(launch, forwarder, lambda: None)

    return run


def test_a_child_that_hangs_is_dumped_killed_and_begun_again(launched, tmp_path):
    ending = launched(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if number == 0: beat(1); time.sleep(60)\nassert again\nend('finished', 0, 3)",
        limits=TIGHT,
    )
    assert (ending.status, ending.exit_code, ending.restarts) == ("finished", 0, 1)
    (restart,) = read_json(tmp_path / "manifest.json")["restarts"]
    assert restart["why"].startswith("rank 0 made no progress after step 1 for")
    dumped = (tmp_path / "logs" / "rank_0.stacks").read_text(encoding="utf-8")
    assert dumped.startswith("--- ")
    assert 'File "<string>"' in dumped
    assert read_json(tmp_path / "outcome.json")["restarts"] == 1


@pytest.mark.parametrize(("saved", "repeated"), [(0, "steps 1 to 1,194"), (150, "steps 151 to 1,194")])
def test_steps_that_are_repeated_in_silence_are_announced(launched, saved, repeated, capsys):
    """A save that was killed before its end has not moved `latest`."""
    launched(
        f"checkpoint = run / 'checkpoints' / '{saved}'\ncheckpoint.mkdir(parents=True, exist_ok=True)\n"
        "from neobert.runfiles.checkpoint.manifest import seal_checkpoint\n"
        f"seal_checkpoint(checkpoint, {saved}, 'digest', 'now')\n"
        "if number == 0:\n    beat(1194)\n    os.kill(os.getpid(), signal.SIGKILL)\nend('finished', 0, 1200)"
    )
    lines = capsys.readouterr().err.splitlines()
    assert f"{repeated} are repeated, and not printed again" in lines


def test_a_job_that_was_suspended_as_a_whole_has_not_stood_still(launched, monkeypatch):
    away_s = [0.0]
    clock = AwakeClock(lambda: time.monotonic() + away_s[0])
    monkeypatch.setattr("launcher.run.session.AwakeClock", lambda: clock)
    threading.Timer(0.4, lambda: away_s.__setitem__(0, 3600.0)).start()
    ending = launched("beat(1)\ntime.sleep(1.5)\nend('finished', 0, 3)")
    assert (ending.status, ending.restarts) == ("finished", 0)
    assert away_s == [3600.0]


def test_a_disk_that_takes_no_stacks_does_not_keep_a_stalled_run_alive(launched, monkeypatch, capsys):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("launcher.run.session.dump_stacks", full)
    ending = launched("beat(1)\ntime.sleep(60)", limits=replace(TIGHT, max_restarts=0))
    assert (ending.status, ending.exit_code) == ("failed", 4)
    assert "could not write stacks" in capsys.readouterr().err


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the launcher find no room for anything that it writes of a run."""

    def full(path: Path, _content: object) -> None:
        with convert_write_errors(path):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("launcher.run.launch_records.write_json", full)
    monkeypatch.setattr("launcher.run.supervision.write_json", full)


@pytest.mark.usefixtures("full_disk")
def test_a_disk_that_takes_no_record_keeps_no_run_from_going_on(launched, capsys):
    ending = launched(
        "beat(1)\nif number == 0: os.kill(os.getpid(), signal.SIGKILL)\nassert again\nend('finished', 0, 3)"
    )
    assert (ending.status, ending.exit_code, ending.step) == ("finished", 0, 3)
    assert "could not write the restart to manifest.json" in capsys.readouterr().err


WITHOUT_OUTCOME = (
    "beat(5)\n(run / 'error.json').write_text(json.dumps({'code': 'CKP004', 'message': 'full',"
    " 'hint': 'make room', 'place': '', 'exit_code': 4}))\nsys.exit(4)"
)


def test_the_launcher_writes_the_outcome_that_the_trainer_could_not(launched, tmp_path):
    assert launched(WITHOUT_OUTCOME).exit_code == 4
    outcome = read_json(tmp_path / "outcome.json")
    assert outcome == {
        "status": "failed", "exit_code": 4, "step": 5, "restarts": 0, "message": "full", "code": "CKP004",
        "hint": "make room",
    }  # fmt: skip
    (tmp_path / "error.json").unlink()
    (tmp_path / "outcome.json").unlink()
    launched("beat(0, 'start')\nsys.exit(3)")
    message = "the trainer exited with code 3 and wrote no outcome"
    assert read_json(tmp_path / "outcome.json")["message"] == message


@pytest.mark.usefixtures("full_disk")
def test_an_outcome_that_nobody_could_write_is_reported(launched, capsys):
    ending = launched(WITHOUT_OUTCOME)
    assert (ending.status, ending.exit_code, ending.step) == ("failed", 4, 5)
    assert capsys.readouterr().err.count("could not write the outcome to outcome.json") == 1


def test_the_hint_of_an_error_is_kept(launched, tmp_path):
    error = {"code": "SPK001", "message": "loss spike", "hint": "lower optimizer.lr", "exit_code": 4}
    ending = launched(
        f"beat(5)\n(run / 'error.json').write_text({json.dumps(error)!r})\nend('failed', 4, 5, 'loss spike')"
    )
    assert (ending.exit_code, ending.restarts) == (93, 1)
    reason = "loss spike; same failure twice at step 5: not retrying [SPK001]"
    assert ending.message.startswith(f"{reason}\n  = hint: lower optimizer.lr")
    outcome = read_json(tmp_path / "outcome.json")
    assert (outcome["code"], outcome["hint"]) == ("SPK001", "lower optimizer.lr")


@pytest.mark.parametrize("code", ["CKP004", "DGR001"])
def test_what_somebody_has_to_change_is_not_restarted(launched, code):
    ending = launched(
        f"beat(5)\n(run / 'error.json').write_text(json.dumps({{'code': '{code}', 'message': 'full',"
        " 'hint': 'make room', 'place': '', 'exit_code': 4}))\nend('failed', 4, 5, 'full')"
    )
    assert (ending.exit_code, ending.restarts) == (4, 0)
    assert "make room" in ending.message


def test_of_several_nodes_none_begins_again_alone(launched, tmp_path):
    stall = "beat(1)\ntime.sleep(60)"
    ending = launched(stall, limits=TIGHT, nnodes=2, node_rank=0)
    assert (ending.exit_code, ending.restarts) == (4, 0)
    assert "made no progress" in ending.message
    assert (tmp_path / "count").read_text() == "."


EARLIER = {"status": "preempted", "exit_code": 75, "step": 4000}


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("sys.exit(1)", ("failed", 4, 0)),
        ("beat(1)\ntime.sleep(60)", ("failed", 4, 1)),
        ("end('preempted', 75, 4000)", ("preempted", 75, 4000)),
        ("end('finished', 0, 3)", ("finished", 0, 3)),
        ("(run / 'outcome.json').unlink()\nsys.exit(1)", ("failed", 4, 0)),
    ],
)
def test_a_node_that_joins_takes_no_outcome_that_was_there_before(program, expected, launched, tmp_path):
    (tmp_path / "outcome.json").write_text(json.dumps(EARLIER), encoding="utf-8")
    ending = launched(program, limits=TIGHT if "sleep" in program else PATIENT, owns_run=False)
    assert (ending.status, ending.exit_code, ending.step) == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stop_before_the_child_can_hear_it_asks_to_be_queued_again(number, launched, tmp_path):
    once(lambda: "trainer_pid" in read_json(tmp_path / "manifest.json"), lambda: os.kill(os.getpid(), number))
    ending = launched("time.sleep(60)")
    assert (ending.status, ending.exit_code, ending.message) == ("preempted", 75, "")


def test_after_a_stop_nothing_begins_again(launched, tmp_path):
    beats = tmp_path / "heartbeat_rank0.jsonl"
    once(lambda: has_line(beats), lambda: os.kill(os.getpid(), signal.SIGTERM))
    ending = launched(
        "signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))\n"
        "beat(1)\ntime.sleep(60)"
    )
    assert (ending.exit_code, ending.restarts) == (4, 0)
    assert (tmp_path / "count").read_text() == "."


@pytest.mark.parametrize(
    ("verdict", "stop", "expected"),
    [
        ("a smoke profile", "", ("failed", 93, "a smoke profile")),
        ("", "", ("preempted", 75, "")),
        ("a smoke profile", "os.kill(os.getppid(), signal.SIGTERM); time.sleep(0.3);", ("preempted", 75, "")),
    ],
)
def test_a_run_that_stopped_at_its_last_end_is_not_queued_again(verdict, stop, expected, launched, tmp_path):
    hears = "signal.signal(signal.SIGTERM, lambda *_: None)"
    reported = "assert os.environ['NEOBERT_STOP_SINCE_BOOT'] == '7'"
    program = f"{hears}; {reported}; beat(5); {stop} end('preempted', 75, 5)"
    ending = launched(program, deadlines=(Deadline(7.0, verdict),))
    assert (ending.status, ending.exit_code) == expected[:2]
    assert expected[2] in ending.message
    assert read_json(tmp_path / "outcome.json")["exit_code"] == expected[1]


def test_a_stop_while_a_session_begins_again_is_no_failure_of_the_one_before(launched, tmp_path):
    ending = launched(
        "if again: os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)\n"
        "beat(5)\nend('failed', 4, 5, 'the loss is not finite')"
    )
    assert (ending.status, ending.exit_code, ending.message) == ("preempted", 75, "")


ORPHAN = """
import os, signal, sys, time
if os.fork():
    os._exit(0)
os.setsid()
signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[3], "a").write("saved"), os._exit(0)))
open(sys.argv[3], "w").close()
time.sleep(60)
"""


@pytest.fixture
def orphan(tmp_path: Path) -> Callable[..., Path]:
    """A rank that trains by a resolved config, and whose parent is gone; asked to end, it writes."""

    def leave(resolved: Path, *, is_of_torchrun: bool = True) -> Path:
        note = tmp_path / f"orphan of {resolved.parent.name}"
        command = [sys.executable, "-c", ORPHAN, trainer_process.TRAINER_MODULE, str(resolved), str(note)]
        reported = {STARTED_BY_AGENT: "none"} if is_of_torchrun else {}
        subprocess.run(command, check=True, env={**os.environ, **reported})
        deadline_s = time.monotonic() + 20
        while not note.exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return note

    return leave


def test_ranks_that_outlived_their_launcher_are_ended_before_another_session_writes(
    launched, orphan, tmp_path
):
    ours, others = orphan(tmp_path / "resolved.json"), orphan(tmp_path / "other" / "resolved.json")
    ending = launched(
        f"assert open({str(ours)!r}).read() == 'saved'\nbeat(1)\nend('finished', 0, 3)",
        limits=replace(PATIENT, grace_s=20),
    )
    assert (ending.status, ending.exit_code) == ("finished", 0)
    assert others.read_text() == ""
    assert stop_orphaned_ranks(tmp_path / "other" / "resolved.json", 20) == (1, 0)


def test_what_torchrun_did_not_start_or_still_has_is_no_orphan(orphan, tmp_path):
    note = orphan(tmp_path / "resolved.json", is_of_torchrun=False)
    agent = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[2:])", AGENT]
    kept = tmp_path / "kept"
    rank = [sys.executable, "-c", ORPHAN.replace("if os.fork():", "if False:").replace("os.setsid()", "")]
    words = [trainer_process.TRAINER_MODULE, str(tmp_path / "resolved.json"), str(kept)]
    with subprocess.Popen([*agent, *rank, *words], env={**os.environ, STARTED_BY_AGENT: "none"}) as parent:
        while not kept.exists():
            time.sleep(0.01)
        assert stop_orphaned_ranks(tmp_path / "resolved.json", 0.1) == (0, 0)
        kill_tree(parent)
    assert note.read_text() == kept.read_text() == ""
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if str(note) in each.cmdline():
                each.kill()


def test_beside_what_cannot_be_killed_nothing_begins(launched, monkeypatch, tmp_path):
    left = iter([(0, 0), (1, 1)])
    monkeypatch.setattr("launcher.run.session.stop_orphaned_ranks", lambda *_: next(left))
    ending = launched("beat(1)\ntime.sleep(60)", limits=TIGHT)
    assert (ending.status, ending.exit_code, ending.restarts) == ("failed", 4, 0)
    assert "hangs in the kernel" in ending.message
    assert (tmp_path / "count").read_text() == "."


def test_what_an_earlier_session_left_in_the_kernel_refuses_the_next(launched, monkeypatch, tmp_path):
    monkeypatch.setattr("launcher.run.session.stop_orphaned_ranks", lambda *_: (1, 1))
    with pytest.raises(ProjectError, match="hangs in the kernel"):
        launched("end('finished', 0, 3)")
    assert not (tmp_path / "count").exists()


def test_what_cannot_be_killed_is_not_waited_for():
    def hang(timeout_s: float) -> int:
        raise subprocess.TimeoutExpired("trainer", timeout_s)

    assert _exit_code_without_wait(SimpleNamespace(wait=hang)) == -signal.SIGKILL
    assert _exit_code_without_wait(SimpleNamespace(wait=lambda _: 4)) == 4


def test_a_stopped_process_is_woken_to_say_where_it_is(tmp_path):
    (tmp_path / "logs").mkdir()
    hears = "signal.signal(signal.SIGTERM, lambda *_: None)\n"
    program = PROGRAM.format(folder=str(tmp_path)) + hears + "beat(1)\ntime.sleep(60)"
    child = trainer_process.start_trainer_process(
        [sys.executable, "-c", program, trainer_process.TRAINER_MODULE],
        tmp_path / "log",
        tmp_path / "error.json",
    )
    beats = tmp_path / "heartbeat_rank0.jsonl"
    wait_for(beats)
    assert json.loads(beats.read_text())["seq"] == 1
    os.kill(child.pid, signal.SIGSTOP)
    while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    found = process_tree.find_workers(child, has_agent=False)
    assert list(found) == [0]
    (file,) = dump_stacks(found, tmp_path, "a test")
    stop_then_kill(child, found, 0.1)
    assert child.poll() is not None
    assert "most recent call first" in file.read_text(encoding="utf-8")


def test_a_dump_that_pauses_within_a_line_is_waited_for(tmp_path):
    (tmp_path / "logs").mkdir()
    slow = f"""
import signal, time
def dump(*_):
    with open({str(stacks_path(tmp_path, 0))!r}, "a") as file:
        for piece in ("in ", "fit\\n"):
            print(piece, end="", file=file, flush=True)
            time.sleep(0.3)
signal.signal(signal.SIGUSR2, dump)
print(1, flush=True)
while True:
    time.sleep(60)
"""
    child = trainer_process.start_trainer_process(
        [sys.executable, "-c", slow], tmp_path / "log", tmp_path / "error.json"
    )
    wait_for(tmp_path / "log")
    (file,) = dump_stacks({0: psutil.Process(child.pid)}, tmp_path, "a test")
    assert file.read_text(encoding="utf-8").endswith("a test\nin fit\n")
    stop_then_kill(child, {}, 0.1)


def test_a_process_that_cannot_say_where_it_is_is_told_apart(tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(process_tree, "DUMP_TIMEOUT_S", 0.1)
    deaf = "import signal, time; signal.signal(signal.SIGUSR2, signal.SIG_IGN); print(1, flush=True)"
    deaf += "; time.sleep(60)"
    child = trainer_process.start_trainer_process(
        [sys.executable, "-c", deaf], tmp_path / "log", tmp_path / "error.json"
    )
    wait_for(tmp_path / "log")
    (file,) = dump_stacks({0: psutil.Process(child.pid)}, tmp_path, "a test")
    assert "no stack was written" in file.read_text(encoding="utf-8")
    stop_then_kill(child, {}, 0.1)


def wait_for(path: Path) -> None:
    deadline_s = time.monotonic() + 60
    while not has_line(path) and time.monotonic() < deadline_s:
        time.sleep(0.01)


def has_line(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


def once(condition: Callable[[], bool], act: Callable[[], None]) -> None:
    """Act, in a thread, as soon as the condition is met."""

    def watch() -> None:
        while not condition():
            time.sleep(0.01)
        act()

    threading.Thread(target=watch, daemon=True).start()
