"""A cluster for all tests of this folder, and runs that are small enough for three nodes on two cores."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, running
from tests.slurm.runs import write_run_file


@pytest.fixture(scope="session")
def daemons() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, running(Path(folder)) as ready:
        yield ready


@pytest.fixture
def cluster(daemons: Cluster) -> Iterator[Cluster]:
    """Return the cluster, which is restored after the test, for the next one."""
    yield daemons
    daemons.restore()


@pytest.fixture
def run_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a run file with these keys of the trainer, and its run directory below `tmp_path`."""
    return lambda **trainer: write_run_file(tmp_path, **trainer)
