"""Fixtures that start the children of a test as forks of a warm interpreter."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

# All that keep the interpreter's path: loaded by a test with another path, they would keep that one.
from launcher.probes import gpus, ranks, trials  # noqa: F401
from tests.workers import shared_folder

ROOT = Path(__file__).parents[2]
CLIENT = Path(__file__).with_name("client.py")
WARM_PATIENCE_S = 300


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an interpreter whose processes are forks of one that has imported the trainer.

    Workers of one test run share that one, which the first to need it starts; it ends with the run.
    """
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    folder = shared_folder(tmp_path_factory.getbasetemp()) / "warm"
    python, listening, bare = (folder / each for each in ("python", "socket", "bare"))
    try:
        folder.mkdir()
    except FileExistsError:
        pass
    else:
        places = [sys.executable, str(listening), str(bare)]
        head = f"#!{sys.executable} -IS\nREAL, SOCKET, BARE = {places!r}\n"
        python.write_text(head + CLIENT.read_text(encoding="utf-8"), encoding="utf-8")
        python.chmod(0o755)
        owner = os.getppid() if is_worker else os.getpid()
        start_warm_server(listening, python, owner)
    deadline_s = time.monotonic() + WARM_PATIENCE_S
    while not (listening.exists() and bare.exists()):
        assert time.monotonic() < deadline_s, f"see {folder / 'log'}"
        time.sleep(0.05)
    return str(python)


def start_warm_server(listening: Path, python: Path, owner: int) -> None:
    command = [sys.executable, "-m", "tests.warm.server", str(listening), str(python), str(owner)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (listening.parent / "log").open("wb") as log:
        in_background = ["/bin/sh", "-c", '"$@" &', "sh", *command]
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        subprocess.run(
            in_background, cwd=ROOT, env=environment, check=True, start_new_session=True, **streams
        )


@pytest.fixture
def warm(warm_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the children of a test as forks; those that are no Python of ours start as ever."""
    monkeypatch.setattr(sys, "executable", warm_python)
    monkeypatch.setenv("PYTHON_EXEC", warm_python)  # which torchrun starts its ranks with
    for module in (ranks, trials):
        monkeypatch.setattr(module, "PYTHON", (warm_python, "-P", "-m"))
