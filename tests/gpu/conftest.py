"""What the tests of a CUDA device share."""

import os
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

# TRITON_INTERPRET=1 runs test_kernels.py on a CPU.
HAS_DEVICE = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests of this folder, and skip them without a CUDA device."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.skipif(not HAS_DEVICE, reason="needs a CUDA device"))


@contextmanager
def _error_on_waits():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def waiting_is_an_error():
    """A block in which the host may not wait for the device: `with waiting_is_an_error():`."""
    return _error_on_waits
