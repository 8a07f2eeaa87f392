"""What every test stands on: one thread a process, no network, quiet hypothesis, a heap set aside."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

# A shell starts background jobs with Ctrl-C ignored, and what is ignored stays so in every child.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "default",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("default")


# The rooms of the unit set: what lies above the process boundary, without `e2e` and `child` tests.
UNIT_ROOMS = ("config", "contracts", "facts", "launcher", "plan", "profiles", "receipt", "validators")
NOT_UNIT = ("e2e", "child")
FORBIDDEN_EVENTS = ("subprocess.Popen", "os.fork", "os.posix_spawn", "socket.connect")


class UnitGuard:
    """Forbids tests of the unit set to import torch, to start a process or to connect to anything."""

    def __init__(self) -> None:
        self.test: str | None = None
        self.broken: list[str] = []
        sys.addaudithook(self.audit)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "import" and arguments[0] == "torch":
            self.broken.append("imports torch")
            raise ModuleNotFoundError("the unit set has no torch", name="torch")
        if self.test is not None and event in FORBIDDEN_EVENTS:
            self.broken.append(f"{event} {arguments[0]!r}")
            raise RuntimeError(f"{self.test} is in the unit set and may not call {event}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.test = item.nodeid
        try:
            return (yield)
        finally:
            self.test = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        self.broken.clear()
        result = yield
        if self.broken:  # code that catches every error must not hide it
            pytest.fail(f"mark it `child`, or replace what it starts: {self.broken}")
        return result


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--unit", action="store_true", help="only tests without child processes, network or torch"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.unit:
        config.pluginmanager.register(UnitGuard())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    room = collection_path.relative_to(Path(__file__).parent).parts[:1]
    is_out = config.option.unit and collection_path.is_dir() and room and room[0] not in UNIT_ROOMS
    return True if is_out else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.unit:
        return
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in NOT_UNIT)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


unfreeze = gc.unfreeze


def pytest_collection_finish() -> None:
    """Set aside what importing all tests left: a training session begins by collecting over what there is.

    It stays so where a session ends, which in a process of its own is the end of the process, too.
    """
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests of the collector itself: nothing is set aside."""
    monkeypatch.setattr(gc, "unfreeze", unfreeze)
    gc.unfreeze()
    yield
    gc.freeze()


ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "tests" / "warm" / "client.py"


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return an interpreter whose processes are forks of one that has imported the trainer."""
    folder = tmp_path_factory.mktemp("warm")
    python, listening = folder / "python", str(folder / "socket")
    head = f"#!{sys.executable} -IS\nREAL, SOCKET = {sys.executable!r}, {listening!r}\n"
    python.write_text(head + CLIENT.read_text(encoding="utf-8"), encoding="utf-8")
    python.chmod(0o755)
    command = [sys.executable, "-m", "tests.warm.server", listening, str(python)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, env=environment) as server:
        while not os.path.exists(listening):
            assert server.poll() is None, "the server of warm interpreters has ended"
            time.sleep(0.02)
        yield str(python)


@pytest.fixture
def warm(warm_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the children of a test as forks; those that are no Python of ours start as ever."""
    monkeypatch.setattr(sys, "executable", warm_python)
    monkeypatch.setenv("PYTHON_EXEC", warm_python)  # which torchrun starts its ranks with
    for module in ("launcher.probes.numerical", "launcher.probes.trials"):
        monkeypatch.setattr(f"{module}.PYTHON", (warm_python, "-P", "-m"))
