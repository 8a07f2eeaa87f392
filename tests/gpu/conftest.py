"""What the tests of a CUDA device share."""

from __future__ import annotations

import warnings
from contextlib import contextmanager

import pytest
import torch


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
