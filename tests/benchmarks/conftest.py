"""The benchmarks are scripts that import each other by their names."""

import sys
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    torch.use_deterministic_algorithms(False)
    AcceleratorState._reset_state(reset_partial_state=True)
