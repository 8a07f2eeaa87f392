"""Probes in child processes: imports, GPU load, data, numerics and devices."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from launcher.probes.child import run_for_json, run_waiting_for_json
from launcher.probes.gpus import NONE_VISIBLE, probe_gpus
from launcher.probes.probe import IncompleteError, Probe, Subject, UnsupportedError
from launcher.process.child_start import RUN_MODULE
from launcher.process.trainer_process import child_environment
from launcher.process.waiting_child import WaitingChild, start_waiting_child
from launcher.terminal.activity import show_progress
from neobert.config import to_dict
from neobert.config.corpora import is_on_hub, list_corpora
from neobert.errors import ProjectError
from neobert.kernel_table import OPTIONAL_PACKAGES
from validators.facts_gpu import GpuLoadFacts
from validators.facts_io import parse_record
from validators.facts_numerics import DeviceFacts, NumericsFacts
from validators.facts_run import ImportFacts, InspectionFacts

PYTHON = (sys.executable, "-P", *RUN_MODULE)
"""Start of a command for a module whose process ends with the launcher, even if the launcher is killed."""
LOAD_S, IMPORTS_S, DATA_S = 60.0, 90.0, 600.0
# Only the first part of a name: looking for a submodule would import its package into the launcher.
OPTIONAL_MODULES = sorted({package.module.partition(".")[0] for package in OPTIONAL_PACKAGES})
SUITE = "neobert.probes"
RATES, LOAD = "neobert.probes.hardware.rates", "neobert.probes.hardware.load"
NUMERICS_S, DEVICES_S = 180.0, 60.0
MARGIN_S = 5.0
TIMED = ("gpu_load", "devices")
"""Probes of a GPU's speed; other probes that use the GPU start after them."""
T = TypeVar("T")


def probe_imports(subject: Subject) -> ImportFacts:
    """Import the trainer's packages and the installed optional ones in a child process."""
    device, count = _device_and_count(subject)
    modules = [name for name in OPTIONAL_MODULES if find_spec(name) is not None]
    modules += ["datasets"] if any(map(is_on_hub, list_corpora(subject.config.dataset))) else []
    return ImportFacts(
        **_run_probe_module(("neobert.probes.hardware.imports", device, str(count), *modules), IMPORTS_S)
    )


def _device_and_count(subject: Subject) -> tuple[str, int]:
    try:
        gpus = len(probe_gpus())
    except UnsupportedError:
        gpus = 0
    return ("cuda", min(gpus, subject.config.distributed.nproc_per_node)) if gpus else ("cpu", 1)


def probe_gpu_load(subject: Subject) -> tuple[GpuLoadFacts, ...]:
    """Load all devices of the run at the same time, and record their clocks.

    Raises UnsupportedError if no GPU is visible or the load cannot run.
    """
    _require_gpus()
    _, count = _device_and_count(subject)
    answer = _run_probe_module((LOAD, str(count)), LOAD_S, subject.children)
    if "error" in answer:
        raise UnsupportedError(answer["error"])
    return tuple(_parse_facts(GpuLoadFacts, each) for each in answer["devices"])


def probe_inspection(subject: Subject) -> InspectionFacts:
    """Prepare and read the text as the trainer would; a rejected text is part of the result."""
    with resolved_file(subject) as path:
        answer = _run_probe_module(("neobert.data.store.inspection", str(path)), DATA_S)
    return _parse_facts(InspectionFacts, answer)


@contextmanager
def resolved_file(subject: Subject) -> Iterator[Path]:
    """Write the resolved config to a temporary file."""
    with tempfile.TemporaryDirectory(prefix="neobert-probe-") as folder:
        path = Path(folder, "resolved.json")
        path.write_text(json.dumps(to_dict(subject.config)), encoding="utf-8")
        yield path


def _run_probe_module(
    module: tuple[str, ...], timeout_s: float, waiting: Sequence[WaitingChild] = ()
) -> dict[str, Any]:
    """Run a module and return its JSON result; uses a waiting child if there is one."""
    for child in waiting:
        answer = run_waiting_for_json(child, module[1:], timeout_s)
        if answer is not None:
            return answer
    return run_for_json((*PYTHON, *module), timeout_s, child_environment(Path(os.devnull)), show_progress)


def make_child_starter(
    module: str, package: str = "torch"
) -> Callable[[Subject], AbstractContextManager[Sequence[WaitingChild]]]:
    """Return a function for `Probe.children` that starts an idle child, if the run requires a GPU.

    The child imports `package`, and later runs `module`.
    """

    @contextmanager
    def children(subject: Subject) -> Iterator[Sequence[WaitingChild]]:
        with ExitStack() as ends:
            yield (
                [ends.enter_context(start_waiting_child(module, (package,)))] if subject.requires_gpu else []
            )

    return children


def numerics_probe(*, needs_gpu: bool, all_backends: bool) -> Probe:
    """Return the numerics probe of the run's attention backend, or of all installed backends.

    It runs on a GPU if there is one; with `needs_gpu`, it is unsupported without a GPU.
    """

    def measure(subject: Subject) -> NumericsFacts:
        return _probe_numerics(subject, needs_gpu=needs_gpu, all_backends=all_backends)

    return Probe(
        "numerics",
        measure,
        NUMERICS_S + MARGIN_S,
        is_heavy=True,
        after=TIMED,
        children=make_child_starter(SUITE, f"{SUITE}.numerics.suite"),
    )


def devices_probe() -> Probe:
    """Return the probe of each visible GPU's results and speed."""
    return Probe(
        "devices",
        probe_devices,
        DEVICES_S + MARGIN_S,
        is_heavy=True,
        after=TIMED[:1],
        children=make_child_starter(RATES),
    )


def _probe_numerics(subject: Subject, *, needs_gpu: bool, all_backends: bool) -> NumericsFacts:
    if needs_gpu:
        _require_gpus()
    options = [*(("--device", "cuda") if needs_gpu else ()), *(("--full",) if all_backends else ())]
    with resolved_file(subject) as path:
        answer = _run_probe_module((SUITE, str(path), *options), NUMERICS_S, subject.children)
    if answer["unsupported"]:
        raise UnsupportedError(answer["unsupported"])
    return _parse_facts(NumericsFacts, answer["numerics"])


def probe_devices(subject: Subject) -> tuple[DeviceFacts, ...]:
    """Time a computation with a known result on every visible GPU. Raises UnsupportedError without a GPU."""
    _require_gpus()
    answer = _run_probe_module((RATES,), DEVICES_S, subject.children)
    return tuple(_parse_facts(DeviceFacts, each) for each in answer["devices"])


def _require_gpus() -> None:
    """Raise UnsupportedError if no GPU is visible, which avoids the slow import of torch."""
    if not probe_gpus():
        raise UnsupportedError(NONE_VISIBLE)


def _parse_facts(kind: type[T], record: dict[str, Any]) -> T:
    try:
        return parse_record(kind, record)
    except ProjectError as error:
        raise IncompleteError(f"the child process's report is invalid: {error.message}") from None
