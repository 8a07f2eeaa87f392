"""Probes that try out in a child what the trainer will do: imports, load, ranks, data."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from launcher.probes.child import ask_json
from launcher.probes.gpus import probe_gpus
from launcher.probes.probe import Subject, UnsupportedError
from launcher.process.trainer_process import child_environment
from neobert.config import to_dict
from neobert.kernel_table import OPTIONAL_PACKAGES
from validators.facts_gpu import GpuLoadFacts
from validators.facts_run import CorpusFacts, ImportFacts, InspectionFacts, PreparedFacts, RefusalFacts

PYTHON = (sys.executable, "-P", "-m")
LOAD_S, IMPORTS_S, DATA_S = 60.0, 90.0, 600.0
# Only the first part of a name: looking for a submodule would import its package into the launcher.
OPTIONAL_MODULES = sorted({package.module.partition(".")[0] for package in OPTIONAL_PACKAGES})


def probe_imports(subject: Subject) -> ImportFacts:
    """Import the trainer's packages, those that are optional too where they are installed."""
    device, count = _devices(subject)
    modules = [name for name in OPTIONAL_MODULES if find_spec(name) is not None]
    return ImportFacts(**_ask(("neobert.probes.hardware.imports", device, str(count), *modules), IMPORTS_S))


def _devices(subject: Subject) -> tuple[str, int]:
    """The kind of device that the run will find here, and how many of them its processes take."""
    try:
        gpus = len(probe_gpus())
    except UnsupportedError:
        gpus = 0
    return ("cuda", min(gpus, subject.config.distributed.nproc_per_node)) if gpus else ("cpu", 1)


def probe_gpu_load(subject: Subject) -> tuple[GpuLoadFacts, ...]:
    """Load the devices of the run together and watch their clocks."""
    device, count = _devices(subject)
    if device != "cuda":
        raise UnsupportedError("there is no GPU to load")
    answer = _ask(("neobert.probes.hardware.load", str(count)), LOAD_S)
    if "error" in answer:
        raise UnsupportedError(answer["error"])
    return tuple(
        GpuLoadFacts(**{**each, "throttle_reasons": tuple(each["throttle_reasons"])})
        for each in answer["devices"]
    )


def probe_inspection(subject: Subject) -> InspectionFacts:
    """Prepare the text as the trainer would, and read it through; what is refused is a fact too."""
    with resolved_file(subject) as path:
        answer = _ask(("neobert.data.store.inspection", str(path)), DATA_S)
    prepared = answer["prepared"]
    return InspectionFacts(
        refusal=RefusalFacts(**answer["refusal"]),
        prepared=None if prepared is None else _prepared(prepared),
    )


def _prepared(answer: Mapping[str, Any]) -> PreparedFacts:
    lists = {name: tuple(value) for name, value in answer.items() if isinstance(value, list)}
    histogram = tuple((longest, count) for longest, count in answer["histogram"])
    corpora = tuple(CorpusFacts(**each) for each in answer["corpora"])
    return PreparedFacts(**{**answer, **lists, "histogram": histogram, "corpora": corpora})


@contextmanager
def resolved_file(subject: Subject) -> Iterator[Path]:
    """The resolved config in a file of its own."""
    with tempfile.TemporaryDirectory(prefix="neobert-probe-") as folder:
        path = Path(folder, "resolved.json")
        path.write_text(json.dumps(to_dict(subject.config)), encoding="utf-8")
        yield path


def _ask(module: tuple[str, ...], timeout_s: float) -> dict[str, Any]:
    return ask_json((*PYTHON, *module), timeout_s, child_environment(Path(os.devnull)))
