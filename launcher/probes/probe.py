"""Probes: their interface, and errors for an unknown result."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from launcher.io.shadowed_modules import PROJECT_ROOT
from launcher.process.waiting_child import WaitingChild
from neobert.config.schema import RunConfig
from neobert.units import BYTES_PER_MIB
from validators.facts_gpu import GpuFacts

DEADLINE_S = 10.0

# A busy network disk; a slower read counts as a hang.
SLOWEST_MIB_PER_S = 50
GRACE_S = 30.0


def _make_set_event() -> Event:
    event = Event()
    event.set()
    return event


def _ignore_time_request(limit_s: float, what: str) -> None:
    """Ignore a request for more time."""


class UnsupportedError(Exception):
    """Raised if the machine lacks what a probe measures or needs, such as a GPU driver or git."""


class IncompleteError(Exception):
    """Raised if a probe ran but did not get a result."""


class TimedOutError(Exception):
    """Raised if the child process of a probe exceeded its time limit and was killed."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Input of the probes.

    Attributes:
        config: the resolved run.
        output_dir: the run directory, absolute.
        folder: working directory of the launch.
        diff_file: file for the uncommitted diff of the working tree; None to write none.
        requires_gpu: whether the run's profile requires a GPU.
        request_time: called by a probe before work of known length, with its seconds from now and a
            description. Replaces the probe's remaining time.
        code: folder of this project, a checkout or an installation.
        checkpoint_mib: size of one checkpoint, as planned; 0.0 if no checkpoint is written.
        peak_mib: memory of the run on each device, as planned; 0.0 if that is not known.
        children: idle processes that `Probe.children` started for this probe.
        trainer: idle process that will later run the trainer; the rehearsal may let it compile its graphs.
        gpus: the devices as they were before the first heavy probe; None if they were not probed.
        is_alone: set once no other probe is running: see `Probe.waits_until_alone`.
    """

    config: RunConfig
    output_dir: Path
    folder: Path
    diff_file: Path | None = None
    requires_gpu: bool = False
    request_time: Callable[[float, str], None] = _ignore_time_request
    code: Path = PROJECT_ROOT
    checkpoint_mib: float = 0.0
    peak_mib: float = 0.0
    children: Sequence[WaitingChild] = ()
    trainer: WaitingChild | None = None
    gpus: Sequence[GpuFacts] | None = None
    is_alone: Event = field(default_factory=_make_set_event)


@dataclass(frozen=True, slots=True)
class Probe:
    """One group of facts and how it is measured.

    Attributes:
        deadline_s: time limit, unless the probe requests an extension.
        is_heavy: whether the probe loads CPUs or devices; it then runs after the light probes, and only if a
            rule needs its group.
        writes: whether the probe creates temporary files that other light probes would report; it then runs
            after these.
        after: groups of heavy probes that end before this one starts, because they would change its result
            or it would change theirs. All others run at the same time.
        waits_until_alone: whether the probe measures nothing before `Subject.is_alone` is set.
        children: starts idle child processes before the first probe, so that they import their packages
            meanwhile; ends the processes that the probe did not use.
    """

    group: str
    measure: Callable[[Subject], Any]
    deadline_s: float = DEADLINE_S
    is_heavy: bool = False
    writes: bool = False
    after: Sequence[str] = ()
    waits_until_alone: bool = False
    children: Callable[[Subject], AbstractContextManager[Sequence[WaitingChild]]] | None = None


def nearest_existing_path(path: Path) -> Path:
    """Return the path itself, or its closest parent that exists; a dangling link exists."""
    return next(place for place in (path, *path.parents) if os.path.lexists(place))


def request_reading_time(subject: Subject, folder: Path, size_bytes: int) -> None:
    """Request as much time as a slow disk needs to read `size_bytes` of a checkpoint folder."""
    size_mib = size_bytes / BYTES_PER_MIB
    subject.request_time(GRACE_S + size_mib / SLOWEST_MIB_PER_S, f"verifying {folder}: {size_mib:,.0f} MiB")
