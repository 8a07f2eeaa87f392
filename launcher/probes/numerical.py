"""Numerics of a training step on this machine, measured in children that can be killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, TypeVar

from launcher.probes.child import ask_json
from launcher.probes.gpus import probe_gpus
from launcher.probes.probe import IncompleteError, Probe, Subject, UnsupportedError
from launcher.probes.trials import resolved_file
from launcher.process.trainer_process import child_environment
from neobert.errors import ProjectError
from validators.facts_io import record_of
from validators.facts_num import DeviceFacts, NumericsFacts

PYTHON = (sys.executable, "-P", "-m")
SUITE, HARDWARE = "neobert.probes", "neobert.probes.hardware.rates"
NUMERICS_S, FULL_S, DEVICES_S = 85.0, 180.0, 60.0
MARGIN_S = 5.0

T = TypeVar("T")


def numerics_probe(*, needs_gpu: bool, every: bool) -> Probe:
    """Probe the path that the run takes, or every installed backend, on a GPU or on what there is."""
    limit_s = FULL_S if every else NUMERICS_S

    def measure(subject: Subject) -> NumericsFacts:
        return _probe_numerics(subject, limit_s, needs_gpu=needs_gpu, every=every)

    return Probe("numerics", measure, limit_s + MARGIN_S, is_heavy=True)


def devices_probe() -> Probe:
    """Probe what every visible GPU computes, and how fast."""
    return Probe("devices", probe_devices, DEVICES_S + MARGIN_S, is_heavy=True)


def _probe_numerics(subject: Subject, limit_s: float, *, needs_gpu: bool, every: bool) -> NumericsFacts:
    if needs_gpu:
        _require_gpus()
    options = [*(("--device", "cuda") if needs_gpu else ()), *(("--full",) if every else ())]
    with resolved_file(subject) as path:
        answer = _ask((SUITE, str(path), *options), limit_s)
    if answer["unsupported"]:
        raise UnsupportedError(answer["unsupported"])
    return _read(NumericsFacts, answer["numerics"])


def probe_devices(_: Subject) -> tuple[DeviceFacts, ...]:
    """Have every visible GPU compute a known answer, and time it."""
    _require_gpus()
    answer = _ask((HARDWARE,), DEVICES_S)
    return tuple(_read(DeviceFacts, each) for each in answer["devices"])


def _require_gpus() -> None:
    """Without a driver there is no reason to import torch. Raises UnsupportedError."""
    if not probe_gpus():
        raise UnsupportedError("no GPU is visible here")


def _ask(module: tuple[str, ...], limit_s: float) -> dict[str, Any]:
    return ask_json((*PYTHON, *module), limit_s, child_environment(Path(os.devnull)))


def _read(kind: type[T], found: dict[str, Any]) -> T:
    try:
        return record_of(kind, found)
    except ProjectError as error:
        raise IncompleteError(f"the child's answer makes no sense: {error.message}") from None
