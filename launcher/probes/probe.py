"""Probes: their interface, and errors for an unknown result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.io.shadowed_modules import PROJECT_ROOT
from launcher.process.waiting_child import WaitingChild
from neobert.config.schema import RunConfig

DEADLINE_S = 10.0


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
        diff_file: where the working tree's difference is kept, or None to keep none.
        requires_gpu: whether the run's profile requires one.
        ask_for_time: called by a probe that knows how long its next piece of work may take: the seconds from
            now on, and words for it. They replace what is left of its deadline.
        code: folder of this project, a checkout or an installation.
        checkpoint_mib: size of one checkpoint, as planned; 0.0 where no checkpoint is written.
        children: processes that wait for the probe since before the first one began: see `Probe.children`.
    """

    config: RunConfig
    output_dir: Path
    folder: Path
    diff_file: Path | None = None
    requires_gpu: bool = False
    ask_for_time: Callable[[float, str], None] = _nobody_waits
    code: Path = PROJECT_ROOT
    checkpoint_mib: float = 0.0
    children: Sequence[WaitingChild] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """One group of facts and how it is measured.

    Attributes:
        deadline_s: time limit, unless the probe requests an extension.
        is_heavy: it loads the processors or the devices, so it runs after the others and by itself, and only
            where a rule will ask for its group.
        writes: it leaves something for a moment where others look, so it runs when they are done.
        measures_time: whether its result depends on what runs next to it; other heavy probes run together.
        children: starts the child processes of the probe before the first probe, so that they import their
            packages meanwhile, and ends those that the probe did not start.
    """

    group: str
    measure: Callable[[Subject], Any]
    deadline_s: float = DEADLINE_S
    is_heavy: bool = False
    writes: bool = False
    measures_time: bool = True
    children: Callable[[Subject], AbstractContextManager[Sequence[WaitingChild]]] | None = None


def nearest_existing(path: Path) -> Path:
    """Return the path itself, or its closest parent that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())
