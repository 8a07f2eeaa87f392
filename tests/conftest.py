"""What every test stands on: one thread a process, no network, quiet hypothesis, a heap set aside."""

import gc
import itertools
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.unit_set import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_ignore_collect,
)
from tests.warm.fixtures import warm, warm_python
from tests.workers import filled_once, pytest_make_collect_report

__all__ = [
    "filled_once", "pytest_addoption", "pytest_collection_modifyitems", "pytest_configure",
    "pytest_ignore_collect", "pytest_make_collect_report", "warm", "warm_python",
]  # fmt: skip

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

# No test cuts the power, and waiting for the disk after every file takes longer than the training. Tests of
# what is synced, and of disks that refuse it, put a function of their own in this place.
os.fsync = lambda descriptor: None

# A shell starts background jobs with Ctrl-C ignored, and what is ignored stays so in every child.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LENIENT = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("default", LENIENT, max_examples=50)
settings.register_profile("thorough", LENIENT, max_examples=500)  # make test-thorough
settings.register_profile("brief", LENIENT, max_examples=10)  # make unit
settings.load_profile("default")


# A compiled step is many objects, and little garbage: collections took a tenth of the time of such tests.
gc.set_threshold(10_000, 20, 20)
unfreeze = gc.unfreeze
FOLDERS = itertools.count()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Set aside what importing all tests left: a training session begins by collecting over what there is.

    It stays so where a session ends, which in a process of its own is the end of the process, too. Modules
    and tests are many objects and little garbage: collections among them take a fifth of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    result = yield
    gc.freeze()
    gc.unfreeze = lambda: None
    if was_enabled:
        gc.enable()
    return result


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder for a test as pytest does, without resolving its path and linking to the newest.

    Both take several times as long as making the folder, which half of the tests ask for.
    """
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{name}{next(FOLDERS)}"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests of the collector itself: nothing is set aside."""
    monkeypatch.setattr(gc, "unfreeze", unfreeze)
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture
def fresh_accelerator() -> Iterator[None]:
    """Leave no accelerator to the next test."""
    from accelerate.state import AcceleratorState

    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Let a test compile from nothing, and leave nothing compiled to the next one."""
    import torch

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
