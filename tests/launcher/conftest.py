"""Commands in this process and in real children; a trainer that only pretends."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

import pytest

from launcher.cli import app
from launcher.probes import child as probe_child
from launcher.probes.probe import Subject
from launcher.process import trainer_process
from neobert.config import replace as with_value
from neobert.config.schema import RunConfig
from tests.launcher.known_machine import run_once

FAKE_TRAINER = Path(__file__).with_name("fake_trainer.py")
FAKE_BINDINGS = Path(__file__).with_name("fake_nvml.txt").read_text(encoding="utf-8")
WITH_FAKE_TRAINER = """
import sys
import launcher.process.trainer_process
launcher.process.trainer_process.TRAINER_MODULE = "fake_trainer"
launcher.process.trainer_process.TRAINER_PACKAGES = ()
from launcher.cli.app import main
main()
"""


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def passed(self) -> Self:
        """Return this answer. Raises AssertionError where the exit code is not 0, with all that was said."""
        assert self.code == 0, self.out + self.err
        return self

    def refused(self, code: int, *words: str) -> Self:
        """Return this answer. Raises AssertionError without the exit code, or the words on standard error."""
        assert self.code == code, self.out + self.err
        assert [each for each in words if each not in self.err] == [], self.err
        return self


@pytest.fixture(autouse=True)
def _away_from_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command may write below the checkout, and no variable of the caller may change what it says."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "NEOBERT_PROFILE_PATH",
        "NEOBERT_TRACEBACK",
        "NO_COLOR",
        "CUDA_VISIBLE_DEVICES",
        "SLURM_JOB_ID",
    ):
        monkeypatch.setenv(name, "")  # else what a command sets would stay set
        monkeypatch.delenv(name)


build_parser = app.make_parser


@cache
def parser_of(command: tuple[str, ...]) -> Any:
    """A parser remembers nothing of a command line; typer takes longer to build it than most commands run."""
    return build_parser(command)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Run one command line in this process."""
    monkeypatch.setattr(app, "make_parser", lambda arguments: parser_of(tuple(arguments[:1])))
    monkeypatch.setattr(probe_child, "run_command", run_once)
    monkeypatch.setattr(trainer_process, "TRAINER_PACKAGES", ())

    def run(*arguments: str | Path) -> Answer:
        capsys.readouterr()
        code = app.run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Answer(code, out, err)

    return run


@pytest.fixture
def run_file(tmp_path: Path) -> Callable[[str], Path]:
    """Write a run file."""

    def write(text: str, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def child_environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(FAKE_TRAINER.parent), "COLUMNS": "100", **more}


@pytest.fixture
def bindings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Bindings of our own; lines that are given come last and so have the last word."""

    def make(*lines: str) -> None:
        text = "\n".join([FAKE_BINDINGS, *lines, ""])
        (tmp_path / "pynvml.py").write_text(text, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return make


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    """A run of all defaults, for the probes."""
    return Subject(RunConfig(), tmp_path / "runs" / "new", tmp_path, code=tmp_path)


@pytest.fixture
def configured(subject: Subject) -> Callable[[Mapping[str, Any]], Subject]:
    """The same with some keys set."""

    def build(values: Mapping[str, Any]) -> Subject:
        config = subject.config
        for path, value in values.items():
            config = with_value(config, path, value)
        return replace(subject, config=config)

    return build


@pytest.fixture
def launch(command: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Run a command line in this process; the trainer that it starts only pretends, as `fake` says."""
    monkeypatch.setattr(trainer_process, "TRAINER_MODULE", FAKE_TRAINER.stem)
    monkeypatch.setenv("PYTHONPATH", str(FAKE_TRAINER.parent))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str | Path, fake: str) -> Answer:
        monkeypatch.setenv("FAKE_TRAINER", fake)
        return command(*arguments)

    return run


def _start(*arguments: str | Path, fake: str = "", **streams: Any) -> subprocess.Popen[str]:
    """Start a command line in a child; `fake` has a pretended trainer behave in that way."""
    program = ["-c", WITH_FAKE_TRAINER] if fake else ["-m", "launcher"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    environment = child_environment(FAKE_TRAINER=fake)
    words = [str(argument) for argument in arguments]
    return subprocess.Popen([sys.executable, *program, *words], text=True, env=environment, **pipes)


def _run(*arguments: str | Path, fake: str = "", **streams: Any) -> Answer:
    """Run a command line in a child to its end."""
    child = _start(*arguments, fake=fake, **streams)
    out, err = child.communicate(timeout=120)
    return Answer(child.returncode, out, err)


@pytest.fixture
def start_child() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start commands in children; none outlives its test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path, **how: Any) -> subprocess.Popen[str]:
        started.append(_start(*arguments, **how))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture
def run_child() -> Callable[..., Answer]:
    """Run a command in a child to its end."""
    return _run
