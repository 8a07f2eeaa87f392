"""A cluster for all tests of this folder, and runs that are small enough for three nodes on two cores."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.slurm.cluster import Cluster, running

RUN = {
    "profile": "cpu-demo",
    "model": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    "scheduler": {"warmup_steps": 5},
    "trainer": {"max_steps": 40, "save_steps": 5, "logging_steps": 1, "eval_steps": 20},
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    path = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    environment = {"PATH": path, "NEOBERT_HEAD": "127.0.0.1"}  # names of virtual nodes do not resolve
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        running(Path(folder), environment) as started,
    ):
        yield started


@pytest.fixture
def run_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a run file with these keys of the trainer, and its run directory below `tmp_path`."""

    def write(**trainer: Any) -> Path:
        path = tmp_path / "run.yaml"
        own = {**RUN["trainer"], "output_dir": str(tmp_path / "run"), **trainer}
        path.write_text(yaml.safe_dump({**RUN, "trainer": own}))
        return path

    return write
