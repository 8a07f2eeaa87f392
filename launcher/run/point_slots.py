"""Devices and cores of points that train at the same time on one host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.probes.gpus import probe_gpus
from launcher.probes.probe import IncompleteError, TimedOutError, UnsupportedError
from neobert.errors import EXIT_CHECK_FAILED, EXIT_USAGE, ProjectError
from neobert.plurals import counted
from profiles.registry import ResolvedRun

OPTION = "--parallel"


@dataclass(frozen=True, slots=True)
class Slot:
    """Devices and cores of one point.

    Attributes:
        devices: identifiers for CUDA_VISIBLE_DEVICES; empty for a run on the CPU.
    """

    devices: tuple[str, ...]
    cores: tuple[int, ...]


def slots_of(run: ResolvedRun, parallel: int) -> list[Slot]:
    """Return the devices and cores of each of `parallel` points.

    Raises ProjectError if there are fewer GPUs than they need.
    """
    devices = () if run.device == "cpu" else _visible_gpus()
    each = run.config.distributed.nproc_per_node if devices or run.device == "cuda" else 0
    return divide(devices, each, sorted(os.sched_getaffinity(0)), parallel)


def divide(devices: Sequence[str], each: int, cores: Sequence[int], parallel: int) -> list[Slot]:
    """Divide devices and cores; no two slots share a device, or a core unless there are fewer than slots.

    Args:
        each: devices of one slot.
    """
    if parallel * each > len(devices):
        visible = counted(len(devices), "GPU") if devices else "no GPU"
        message = f"{counted(parallel, 'point')} of {counted(each, 'GPU')}, but {visible} visible"
        most = len(devices) // each
        hint = f"{OPTION} {most}" if most else "leave out --parallel, or see CUDA_VISIBLE_DEVICES"
        raise ProjectError("sweep", message, hint, OPTION, EXIT_USAGE)
    share = len(cores) // parallel
    return [
        Slot(
            devices=tuple(devices[index * each : (index + 1) * each]),
            cores=tuple(cores[index * share : (index + 1) * share] or cores),
        )
        for index in range(parallel)
    ]


def _visible_gpus() -> tuple[str, ...]:
    """Return the visible GPUs by UUID, because CUDA may number them in another order than the driver."""
    try:
        return tuple(gpu.uuid for gpu in probe_gpus())
    except UnsupportedError:
        return ()
    except (IncompleteError, TimedOutError) as error:
        raise ProjectError(
            "sweep", f"the GPUs cannot be listed: {error}", "see nvidia-smi", OPTION, EXIT_CHECK_FAILED
        ) from None
