"""Tests of plug-ins in child processes, which import the user's code. The launcher never does."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.probes import trials
from launcher.probes.child import run_for_json
from launcher.probes.probe import IncompleteError, Subject
from launcher.process.trainer_process import child_environment
from launcher.terminal.activity import log_long_waits
from neobert.config import to_dict
from neobert.errors import ProjectError
from neobert.plugins.kinds import DATASET, MASKING, requested_plugins
from validators.facts_io import parse_record
from validators.facts_run import PluginFacts

MODULE = "neobert.plugins.probes"
HASH_SEEDS = ("1", "2")
"""Seeds of string hashes: the order of a set of strings differs between the two processes."""


def probe_plugins(subject: Subject) -> PluginFacts:
    """Test a run's plug-ins, and compare results of masking and datasets from two processes.

    Raises IncompleteError if a child process fails or its report is invalid.
    """
    first = _examine_plugins(subject, HASH_SEEDS[0], is_again=False)
    compared = [
        each.key for each in requested_plugins(subject.config.plugins) if each.kind in (MASKING, DATASET)
    ]
    if compared and not first["failures"]:
        second = _examine_plugins(subject, HASH_SEEDS[1], is_again=True)
        first["failures"] = [*second["failures"], *_differing_results(first["digests"], second["digests"])]
    try:
        return parse_record(PluginFacts, {name: each for name, each in first.items() if name != "digests"})
    except ProjectError as error:
        raise IncompleteError(f"the child process's report is invalid: {error.message}") from None


def _differing_results(first: dict[str, str], second: dict[str, str]) -> Iterator[dict[str, str]]:
    for key, digest in first.items():
        if second.get(key) != digest:
            message = f"{key} returns different results in another process"
            hint = "sort sets: the order of their strings differs between processes"
            yield {"key": key, "message": message, "hint": hint}


def _examine_plugins(subject: Subject, hash_seed: str, *, is_again: bool) -> dict[str, Any]:
    request = {"config": to_dict(subject.config), "again": is_again}
    with tempfile.TemporaryDirectory(prefix="neobert-probe-") as folder, log_long_waits() as show_progress:
        path = Path(folder, "request.json")
        path.write_text(json.dumps(request), encoding="utf-8")
        environment = child_environment(Path(os.devnull), more={"PYTHONHASHSEED": hash_seed})
        tests = ["importing plug-ins"]

        def note(step: str) -> None:
            if step.startswith("testing "):
                tests.append(step)
            show_progress(step)

        try:
            return run_for_json((*trials.PYTHON, MODULE, str(path)), trials.DATA_S, environment, note)
        except IncompleteError as error:
            raise IncompleteError(f"{error}, while {tests[-1]}") from None
