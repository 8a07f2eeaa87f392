"""Levels of a preflight, and the probes that each needs."""

from __future__ import annotations

import os
from collections.abc import Collection

from launcher.preflight.rehearsal import probe_rehearsal
from launcher.preflight.rehearsal_children import REHEARSAL_S, waiting_children
from launcher.probes.data import is_small_text, probe_data
from launcher.probes.disk import probe_disk, probe_output
from launcher.probes.git import probe_git
from launcher.probes.gpus import probe_gpu_health, probe_gpu_log, probe_gpus
from launcher.probes.host import probe_host
from launcher.probes.plugins import probe_plugins
from launcher.probes.probe import Probe
from launcher.probes.ranks import ranks_probe
from launcher.probes.resume import probe_resume
from launcher.probes.scheduler import probe_scheduler
from launcher.probes.software import probe_software
from launcher.probes.text import probe_text
from launcher.probes.tracker import probe_tracker
from launcher.probes.trials import (
    DATA_S,
    IMPORTS_S,
    LOAD,
    LOAD_S,
    TIMED,
    devices_probe,
    make_child_starter,
    numerics_probe,
    probe_gpu_load,
    probe_imports,
    probe_inspection,
)
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators.core import levels_with_rules
from validators.finding import Level

ALL = "full"
QUICK = (Level.STATIC, Level.HOST, Level.GPU)
# A level without any rule would pass without checking anything.
JUDGED = levels_with_rules()
NAMES = {str(level): (level,) for level in JUDGED} | {ALL: JUDGED}
MARGIN_S = 10.0
TEXT_S = 60.0
"""Time limit for listing and opening the files of the text, which may be on a network file system."""

HOST_PROBES = (
    Probe("software", probe_software),
    Probe("git", probe_git),
    Probe("host", lambda _: probe_host()),
    Probe("disk", probe_disk, writes=True),
    Probe("output", probe_output),
    Probe("resume", probe_resume),
    Probe("tracker", probe_tracker),
    Probe("scheduler", lambda _: probe_scheduler(os.environ)),
    Probe("data", probe_data),
    Probe("text", probe_text, TEXT_S),
)
GPU_PROBES = (
    Probe("gpus", lambda _: probe_gpus()),
    Probe("gpu_health", lambda _: probe_gpu_health()),
    Probe("gpu_log", lambda _: probe_gpu_log()),
)
# Child processes that import torch, load the devices or read all data. Their own timeouts come first.
HEAVY_PROBES = (
    Probe("plugins", probe_plugins, 2 * DATA_S + MARGIN_S, is_heavy=True),
    Probe("imports", probe_imports, IMPORTS_S + MARGIN_S, is_heavy=True),
    Probe("inspection", probe_inspection, DATA_S + MARGIN_S, is_heavy=True),
    Probe("gpu_load", probe_gpu_load, LOAD_S + MARGIN_S, is_heavy=True, children=make_child_starter(LOAD)),
    devices_probe(),
    numerics_probe(needs_gpu=True, all_backends=False),
    ranks_probe(),
    Probe(
        "rehearsal",
        probe_rehearsal,
        REHEARSAL_S + MARGIN_S,
        is_heavy=True,
        after=(*TIMED, "distributed"),
        waits_until_alone=True,
        children=waiting_children,
    ),
)


def longest_s() -> float:
    """Return the time limit of a preflight in seconds: light probes in parallel, heavy ones in sequence."""
    light_s = max(probe.deadline_s for probe in (*HOST_PROBES, *GPU_PROBES))
    return light_s + sum(probe.deadline_s for probe in HEAVY_PROBES)


def default_levels(run: ResolvedRun) -> tuple[Level, ...]:
    """Return the default levels: all for a production run, else static, host and gpu, and sometimes data.

    A smoke run is not rehearsed, because its rehearsal would take longer than the run. Tables of labels,
    pairs and conversations are always checked. Small local texts are prepared for a GPU run while its GPU is
    measured, so that the trainer finds them ready.
    """
    if run.is_production:
        return JUDGED
    is_prepared_early = run.device == "cuda" and is_small_text(run.config.dataset)
    return (*QUICK, Level.DATA) if spec_of(run.config).reads_table or is_prepared_early else QUICK


def parse_levels(text: str) -> tuple[Level, ...]:
    """Parse a list such as `static,host,gpu`; empty text has no levels.

    Returns the levels in their own order. Raises ProjectError for an unknown level.
    """
    requested: dict[Level, None] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        if word not in NAMES:
            raise ProjectError(
                code="unknown-level",
                message=f"{word!r} is not a level",
                hint=f"pass one or more of {', '.join(NAMES)}",
                place="--level",
                exit_code=EXIT_USAGE,
            )
        requested.update(dict.fromkeys(NAMES[word]))
    return tuple(level for level in Level if level in requested)


def probes_for(levels: tuple[Level, ...], needed: Collection[str]) -> tuple[Probe, ...]:
    """Return the probes to run: the light ones of the levels, and the heavy ones that a rule needs.

    Kernel rules on a GPU also need the software facts. Static rules need no probes.
    """
    if not set(levels) - {Level.STATIC}:
        return ()
    on_host = HOST_PROBES if Level.HOST in levels or Level.DATA in levels else HOST_PROBES[:1]
    on_gpu = GPU_PROBES if set(levels) - {Level.STATIC, Level.HOST} else ()
    return (*on_host, *on_gpu, *(probe for probe in HEAVY_PROBES if probe.group in needed))
