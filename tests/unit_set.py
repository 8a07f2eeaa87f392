"""The unit set, `pytest --unit`: tests without child processes, network or torch, and the guard of that."""

import gc
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.workers import in_one_order

# The rooms of the unit set: what lies above the process boundary, without `e2e` and `child` tests.
UNIT_ROOMS = ("config", "contracts", "facts", "launcher", "plan", "profiles", "receipt", "validators")
NOT_UNIT = ("e2e", "child")
FORBIDDEN_EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn", "socket.connect"})


class UnitGuard:
    """Forbids tests of the unit set to import torch, to start a process or to connect to anything."""

    def __init__(self) -> None:
        self.test: str | None = None
        self.broken: list[str] = []
        sys.addaudithook(self.audit)
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a torch that cannot be imported: `importlib.import_module` raises no audit event."""
        return ModuleSpec(name, self) if name == "torch" else None

    def create_module(self, spec: ModuleSpec) -> NoReturn:
        self.broken.append("imports torch")
        raise ModuleNotFoundError("the unit set has no torch", name="torch")

    def exec_module(self, module: Any) -> None:
        """Nothing: there is no module. Loaders have this method."""

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN_EVENTS and self.test is not None:  # there are millions of other events
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
        # Trees of sources and configs are many objects and little garbage: collections only slow them down.
        gc.disable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    room = collection_path.relative_to(Path(__file__).parent).parts[:1]
    is_out = config.option.unit and collection_path.is_dir() and room and room[0] not in UNIT_ROOMS
    return True if is_out else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    in_one_order(items)
    if not config.option.unit:
        return
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in NOT_UNIT)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]
