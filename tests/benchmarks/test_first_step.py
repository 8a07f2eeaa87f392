"""The parts of a start, from the states of a command and of its rehearsal."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import first_step

REHEARSED = [
    (0.0, "command", "checking"),
    (3.0, "fresh", "preparing the text, building the model"),
    (3.0, "command", "rehearsing"),
    (5.0, "fresh", "running the worst-case microbatch"),
    (6.0, "fresh", "waiting for the other checks"),
    (9.0, "fresh", "step 4 of 28"),
    (9.5, "fresh", "step 8 of 28"),
    (10.0, "fresh", "running the worst-case microbatch with the optimizer state in memory"),
    (11.0, "resumed", "preparing the text, building the model"),
    (12.0, "fresh", "comparing accumulated gradients"),
    (15.0, "resumed_again", "starting"),
    (18.0, "command", "starting the trainer"),
    (20.0, "command", "first step"),
]


def test_overlapping_parts_count_once() -> None:
    assert first_step.parts_of(REHEARSED, 20.0) == {
        "imports, checks, text": 5.0,
        "compilation": 4.0,
        "measured steps, save, memory": 2.0,
        "two resumed sessions": 7.0,
        "trainer": 2.0,
    }


def test_a_kept_receipt_leaves_the_checks_and_the_trainer() -> None:
    states = [state for state in REHEARSED if state[1] == "command" and state[2] != "rehearsing"]
    assert first_step.parts_of(states, 20.0) == {"imports, checks, text": 18.0, "trainer": 2.0}


def test_bytecode_is_kept_where_the_environment_forbids_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    variables = first_step.environment(tmp_path / "first-step")
    first_step.write_bytecode({first_step.folder_of("json")}, variables)
    command = [sys.executable, "-c", "import json, sys; print(json.__cached__, sys.dont_write_bytecode)"]
    cached, _, forbids = subprocess.check_output(command, env=variables, text=True).strip().rpartition(" ")
    assert Path(cached).is_relative_to(tmp_path / "bytecode")
    assert (Path(cached).exists(), forbids) == (True, "False")


def test_everything_that_a_start_imports_is_compiled() -> None:
    folders = first_step.package_folders()
    for module in ("launcher.commands.train", "neobert.train", "torch.nn", "transformers", "argparse"):
        spec = find_spec(module)
        assert spec is not None
        assert any(Path(str(spec.origin)).is_relative_to(folder) for folder in folders), module
