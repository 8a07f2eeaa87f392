"""Files that the workers of a test run share: compiled tests, and folders that are slow to fill."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))

FillFolder = Callable[[Path], None]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Have each worker begin with other files of a folder, so that each file is compiled by one of them.

    In one order all would come to a file of a new checkout at the same time, and each would compile it.
    """
    report = yield
    if isinstance(collector, pytest.Dir):
        first = WORKER * len(report.result) // WORKERS
        report.result = report.result[first:] + report.result[:first]
    return report


def in_one_order(items: list[pytest.Item]) -> None:
    """Sort the tests by file: workers that begin with other files must name the same tests in one order."""
    items.sort(key=lambda item: item.path)


def shared_folder(base: Path) -> Path:
    """Return the folder of a test run, given that of one of its workers."""
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def filled_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, FillFolder], Path]:
    """Fill a folder once for all workers, which may each have some of the tests of one file."""

    def filled(name: str, fill: FillFolder) -> Path:
        folder = shared_folder(tmp_path_factory.getbasetemp()) / name
        done = folder.with_suffix(".done")
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a worker in which it failed
                folder.mkdir()
                fill(folder)
                done.touch()
        return folder

    return filled
