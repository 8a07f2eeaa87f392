"""Probes: their interface, and errors for an unknown result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from launcher.io.shadowed_modules import PROJECT_ROOT
from launcher.process.waiting_child import WaitingChild
from neobert.config.schema import RunConfig
from validators.facts_gpu import GpuFacts

DEADLINE_S = 10.0


def _happened() -> Event:
    event = Event()
    event.set()
    return event


def _nobody_waits(limit_s: float, what: str) -> None:
    """Ignore a time extension: this caller has no deadline."""


class UnsupportedError(Exception):
    """This machine has nothing to probe: no driver, no repository tool."""


class IncompleteError(Exception):
    """The probe ran but did not get a result."""


class TimedOutError(Exception):
    """The probe's child process exceeded its time limit and was killed."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Input of the probes.

    Attributes:
        config: the resolved run.
        output_dir: the run directory, absolute.
        folder: where the run is launched from.
        diff_file: file for the uncommitted diff of the working tree; None to write none.
        requires_gpu: whether the run's profile requires one.
        request_time: called by a probe before work of known length, with its seconds from now and a
            description. Replaces the probe's remaining time.
        code: folder of this project, a checkout or an installation.
        checkpoint_mib: size of one checkpoint, as planned; 0.0 if no checkpoint is written.
        peak_mib: memory of the run on each device, as planned; 0.0 if that is not known.
        children: processes that wait for the probe since before the first one began: see `Probe.children`.
        trainer: the process that waits to become the trainer, which the rehearsal may warm up.
        gpus: the devices as they were before the first heavy probe; None if they were not probed.
        is_alone: set once no other probe is running: see `Probe.waits_until_alone`.
    """

    config: RunConfig
    output_dir: Path
    folder: Path
    diff_file: Path | None = None
    requires_gpu: bool = False
    request_time: Callable[[float, str], None] = _nobody_waits
    code: Path = PROJECT_ROOT
    checkpoint_mib: float = 0.0
    peak_mib: float = 0.0
    children: Sequence[WaitingChild] = ()
    trainer: WaitingChild | None = None
    gpus: Sequence[GpuFacts] | None = None
    is_alone: Event = field(default_factory=_happened)


@dataclass(frozen=True, slots=True)
class Probe:
    """One group of facts and how it is measured.

    Attributes:
        deadline_s: time limit, unless the probe requests an extension.
        is_heavy: it loads the processors or the devices, so it runs after the others and alone, and only if a
            rule needs its group.
        writes: it creates temporary files that other probes would see, so it runs after them.
        measures_time: whether its result depends on what runs next to it; other heavy probes run together.
        waits_until_alone: it measures time, but starts next to the probes that do not, and measures nothing
            before `Subject.is_alone`.
        children: starts the child processes of the probe before the first probe, so that they import their
            packages meanwhile, and ends those that the probe did not start.
    """

    group: str
    measure: Callable[[Subject], Any]
    deadline_s: float = DEADLINE_S
    is_heavy: bool = False
    writes: bool = False
    measures_time: bool = True
    waits_until_alone: bool = False
    children: Callable[[Subject], AbstractContextManager[Sequence[WaitingChild]]] | None = None


def nearest_existing(path: Path) -> Path:
    """Return the path itself, or its closest parent that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())
