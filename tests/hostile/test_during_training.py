"""A terminal, a file system or a clock that changes while a run trains: the run ends as documented."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from launcher.commands.status import read_status
from launcher.run.launch_context import deadline_environment
from launcher.run.summary import summarize_run
from neobert.config import from_dict
from neobert.errors import ProjectError
from neobert.training.loop.hooks import Hook
from neobert.training.loop.session import run_session
from neobert.training.loop.signals import Signals
from tests.launcher.conftest import _away_from_the_repository, command, run_child, start_child
from tests.training.conftest import corpus, exact_lines, finished, make_run, run, uninterrupted

__all__ = [
    "_away_from_the_repository", "command", "corpus", "finished", "make_run", "run", "run_child",
    "start_child", "uninterrupted",
]  # fmt: skip

TRAIN = ("train", "-p", "cpu-demo", "--set", "trainer.output_dir=run")
PATIENCE_S = 60


def train_until(run_dir: Path, step: int, *acts: Callable[[], Any]) -> int:
    """Run a session in this process, and do something to it when a step is done, and after the next ones."""
    config = from_dict(json.loads((run_dir / "resolved.json").read_text(encoding="utf-8")))

    def meddle(trainer: Any, _report: Any) -> None:
        if step <= trainer.progress.step < step + len(acts):
            acts[trainer.progress.step - step]()

    return run_session(config, run_dir, Signals(), lambda _: [Hook(name="test", act=meddle, every=1)])


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe that holds a page, and whose reader takes nothing."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    yield write
    os.close(write)
    os.close(read)


@pytest.mark.e2e
def test_a_reader_that_takes_nothing_delays_neither_a_restart_nor_the_end(start_child, unread):
    child = start_child(*TRAIN, fake="chatter", stdout=unread, stderr=unread)
    try:
        assert child.wait(PATIENCE_S) == 0
    except subprocess.TimeoutExpired:
        pytest.fail("the launcher waits for its reader")
    (restart,) = json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))["restarts"]
    assert restart["why"].startswith("rank 0 was killed by SIGKILL")


@pytest.fixture
def limits(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a launch of a smoke profile tells its trainer of the hour that it has."""
    environments: list[dict[str, str]] = []

    def start(launch: Any, *, is_restart: bool) -> None:
        environments.append(deadline_environment(launch.deadlines))
        raise ProjectError("enough", "the environment is known")

    with monkeypatch.context() as patch:
        patch.setattr("launcher.run.session.start_trainer", start)
        command(*TRAIN)
    return environments[0]


def test_a_clock_that_is_set_forward_ends_no_run(limits, make_run, monkeypatch):
    for name, value in limits.items():
        monkeypatch.setenv(name, value)
    run_dir, now = make_run("shifted"), time.time
    code = train_until(run_dir, 6, lambda: monkeypatch.setattr(time, "time", lambda: now() + 7200))
    assert code == 0
    age_s = read_status(run_dir, datetime.fromtimestamp(now() + 7200, UTC)).heartbeat_age_s
    assert age_s is not None
    assert age_s < 3600


@pytest.mark.e2e
def test_a_run_whose_directory_was_moved_is_not_restarted(run_child):
    answer = run_child(*TRAIN, fake="moved")
    assert answer.code == 4
    assert f"not restarting: {Path('run').absolute()} was moved or deleted" in " ".join(answer.out.split())
    assert not Path("run").exists()


@pytest.mark.parametrize("remove", [shutil.rmtree, lambda folder: folder.rename(folder.with_name("moved"))])
def test_a_run_whose_directory_is_moved_or_deleted_says_what_is_lost_and_makes_no_other(make_run, remove):
    run_dir = make_run(trainer={"async_save": False})  # else files come while they are deleted
    with pytest.raises(ProjectError, match="moved or deleted") as caught:
        train_until(run_dir, 7, lambda: remove(run_dir))
    assert (caught.value.code, caught.value.exit_code) == ("TRN002", 4)
    assert "step 8 is not saved" in caught.value.message
    assert not run_dir.exists()


def test_a_halt_file_ends_a_run_with_a_checkpoint_as_an_interrupt_does(make_run, run, uninterrupted):
    run_dir = make_run()
    assert train_until(run_dir, 6, (run_dir / ".HALT").touch) == 130
    outcome = json.loads((run_dir / "outcome.json").read_text(encoding="utf-8"))
    assert outcome == {"status": "interrupted", "exit_code": 130, "step": 7, "message": ""}
    assert not (run_dir / ".HALT").exists(), "it was obeyed, and does not block the next launch"
    assert run(run_dir) == 0
    assert exact_lines(run_dir) == uninterrupted


def test_nothing_is_launched_beside_a_halt_file(command, monkeypatch):
    halt = Path("run/.HALT").absolute()
    halt.parent.mkdir()
    halt.touch()
    answer = command(*TRAIN, "--resume", "auto")
    assert answer.code == 1
    assert "the run directory contains .HALT, which blocks training [halted]" in answer.err
    assert f"rm {halt}, then repeat this command" in " ".join(answer.err.split())
    assert [*halt.parent.iterdir()] == [halt]
    monkeypatch.setattr(sys, "argv", ["neobert-launch", *TRAIN])
    ending = summarize_run(halt.parent, 130, (), None, verdict={"status": "interrupted", "exit_code": 130})
    assert ending.next_command.startswith(f"rm {halt} && neobert-launch ")
