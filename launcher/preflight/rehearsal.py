"""Rehearsal of a run in child processes: training steps, resume trials and hang detection."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from launcher.preflight.driver_memory import (
    externally_reported_memory,
    reports_memory_of_process,
    subtract_earlier_memory,
    visible_gpus,
)
from launcher.preflight.recipe_comparison import compare_recipe
from launcher.preflight.rehearsal_children import (
    FRESH,
    MEASURED,
    PARTS,
    REHEARSAL_S,
    RESUMED,
    RESUMED_AGAIN,
    STEP,
    EarlyWarmUp,
    RehearsalState,
    StoppedError,
    evaluation_helper,
    running_part,
    wait_for_results,
    warm_up,
)
from launcher.preflight.rehearsal_facts import Ranks, combine_records
from launcher.probes.gpus import NONE_VISIBLE, probe_gpus
from launcher.probes.host import probe_host
from launcher.probes.probe import IncompleteError, Subject, UnsupportedError, nearest_existing_path
from launcher.process.process_tree import kill_tree, kill_without_wait
from launcher.rundir.records import last_heartbeat, read_json
from launcher.rundir.stalls import Watchdog
from neobert.config import digest, to_dict
from neobert.config.schema import WatchdogConfig
from neobert.precision.libraries import enabled_conversion
from neobert.receipt import FILE_NAME as RECEIPT
from validators.facts_gpu import GpuFacts
from validators.facts_rehearsal import RehearsalFacts, WatchdogFacts

FOLDER = "run"
FACTS = "facts.json"
POLL_S = 0.05
STALL_S, BEAT_S = 2.0, 0.5
STALL_PATIENCE = 10
LIMITS = WatchdogConfig(
    start_limit_s=STALL_S,
    compile_limit_s=STALL_S,
    step_limit_s=STALL_S,
    data_wait_limit_s=STALL_S,
    evaluation_limit_s=STALL_S,
    save_limit_s=STALL_S,
    heartbeat_interval_s=BEAT_S,
)
"""Watchdog limits of a rehearsal, which cannot wait for the default limits of up to half an hour."""
AT_ONCE_BEFORE = 3
"""Processes before the measurements: the uninterrupted run, the helper, and the first resume's warm-up."""
ALL_AT_ONCE = 4
"""Processes at the end of the uninterrupted run: that run, the first resume, and two that warm up."""
MARGIN = 1.1
MARGIN_S = 15.0
OTHERS_S = 610.0
"""Time limit of the probes that run during the start of a rehearsal: preparing a text takes minutes."""


@dataclass(frozen=True, slots=True)
class FreshResults:
    """Results from the uninterrupted run and the watchdog test at its end."""

    results: Ranks
    watchdog: WatchdogFacts | None

    @property
    def is_out_of_memory(self) -> bool:
        """Return whether a rank ran out of memory."""
        return any(rank.get("out_of_memory") for rank in self.results)


def probe_rehearsal(subject: Subject) -> RehearsalFacts:
    """Rehearse the run; a run that stops itself because it does not learn is a result.

    Raises UnsupportedError if a required GPU is missing, and IncompleteError or TimedOutError with the last
    stage reached.
    """
    gpus = () if subject.is_alone.is_set() else subject.gpus  # without the memory of concurrent probes
    gpus = gpus or (probe_gpus() if subject.requires_gpu else visible_gpus())
    if subject.requires_gpu and not gpus:
        raise UnsupportedError(NONE_VISIBLE)
    started_s = time.monotonic()
    if not subject.is_alone.is_set():
        subject.request_time(OTHERS_S + REHEARSAL_S + MARGIN_S, "rehearsal: starting")
    try:
        measured = _rehearse(subject, gpus, started_s)
    except StoppedError as error:
        return _stopped_run_facts(subject, gpus, error, time.monotonic() - started_s)
    return replace(measured, baseline_tokens_per_second=earlier_pace(subject, measured.device_name))


def _rehearse(subject: Subject, gpus: Sequence[GpuFacts], started_s: float) -> RehearsalFacts:
    """Run all parts of the rehearsal and return its facts.

    Parts overlap if memory allows, except during the measurements of the uninterrupted run.
    """
    ranks, before = subject.config.distributed.nproc_per_node, {gpu.uuid: gpu for gpu in gpus}
    waiting = dict(zip(PARTS, subject.children, strict=False))
    with scratch_folder(subject) as folder, ThreadPoolExecutor(1) as background:
        state = RehearsalState(folder, ranks, started_s + REHEARSAL_S, waiting, subject.is_alone)
        state.resolved.write_text(json.dumps(to_dict(subject.config)), encoding="utf-8")
        planned = min((num_planned_processes(subject.peak_mib, gpu) for gpu in gpus), default=math.inf)
        with evaluation_helper(state, has_room=planned >= 2), running_part(state, FRESH) as fresh:
            if gpus and planned >= AT_ONCE_BEFORE:
                state.early = early_warm_up(state, subject, fresh)
            measured = wait_for_results(state, FRESH, fresh, MEASURED)
            outside = externally_reported_memory(measured[0], before)
            room = num_fitting_processes(measured, outside, before)
            continue_uninterrupted_run(state)
            rest = background.submit(_finish_uninterrupted_run, state, fresh)
            if room < 2 or ranks > 1:
                rest.result()
                kill_tree(fresh)
            elif room >= ALL_AT_ONCE:
                warm_up(state.waiting.get(RESUMED_AGAIN), subject.config, state.resolved, STEP)
                warm_up(subject.trainer, subject.config, state.resolved)
            trains_next = subject.trainer is not None
            resumes = (
                () if is_out_of_memory(rest) else _resume_twice(state, room=room, trains_next=trains_next)
            )
            end = rest.result()
        subtract_earlier_memory(end.results, before)
        if end.is_out_of_memory:
            resumes = ()
        low_precision = None
        if enabled_conversion(subject.config) is not None and not end.is_out_of_memory:
            if subject.trainer is not None:
                subject.trainer.wait_for_warm_up()  # compiling at the same time would change the measurement
            low_precision = compare_recipe(state, subject.config, subject.request_time, has_room=room >= 2)
    duration_s = time.monotonic() - started_s
    found = combine_records(end.results, resumes, outside, end.watchdog, ranks, duration_s)
    return replace(found, low_precision=low_precision)


def _finish_uninterrupted_run(state: RehearsalState, fresh: subprocess.Popen[bytes]) -> FreshResults:
    """Wait for the end of the uninterrupted run and return its results.

    Then tests that the watchdog detects its deliberate hang, unless a rank ran out of memory.
    """
    results = wait_for_results(state, FRESH, fresh, is_announced=False)
    end = FreshResults(results, None)
    return end if end.is_out_of_memory else replace(end, watchdog=detect_stall(state, fresh))


def is_out_of_memory(rest: Future[FreshResults]) -> bool:
    """Return whether the uninterrupted run has already ended because it ran out of memory."""
    return rest.done() and rest.result().is_out_of_memory


def _resume_twice(state: RehearsalState, *, room: int, trains_next: bool) -> tuple[Ranks, Ranks]:
    """Resume from the uninterrupted run's checkpoint, kill that process, and resume from its own checkpoint.

    Args:
        room: number of processes that fit into memory. With three, the next one starts while the driver still
            frees the memory of a killed one.
        trains_next: whether the trainer follows. If not, wait until killed processes have ended, so that the
            next command does not find the device in use.
    """
    kill = kill_without_wait if room > 2 else kill_tree
    kill_at_end = kill if trains_next else kill_tree
    with running_part(state, RESUMED, kill_at_end) as child:
        first = wait_for_results(state, RESUMED, child)
        kill(child)
        with running_part(state, RESUMED_AGAIN, kill_at_end) as again:
            return first, wait_for_results(state, RESUMED_AGAIN, again)


def continue_uninterrupted_run(state: RehearsalState) -> None:
    """Let the uninterrupted run continue; it waits until its measurement files are removed."""
    for rank in range(state.ranks):
        state.result(MEASURED, rank).unlink(missing_ok=True)


def num_fitting_processes(measured: Ranks, outside: Mapping[str, Any], before: Mapping[str, GpuFacts]) -> int:
    """Return how many processes of the measured size fit into device and host memory, or 1 if unknown."""
    first = measured[0]
    if first.get("out_of_memory") or not outside["system_rss_mib"]:
        return 1
    fitting = [1 + int(probe_host().ram_available_mib / (MARGIN * outside["system_rss_mib"]))]
    if memory := first.get("memory"):
        gpu = before.get(first.get("gpu_uuid", ""))
        free_mib = memory["total_mib"] - (gpu.memory_used_mib if gpu else 0)
        fitting.append(int(free_mib / (MARGIN * (memory["peak_reserved_mib"] + memory["context_mib"]))))
    return min(fitting)


def num_planned_processes(peak_mib: float, gpu: GpuFacts) -> int:
    """Return how many processes with the planned memory peak fit on a device, or 0 if it is unknown."""
    free_mib = gpu.memory_total_mib - gpu.memory_used_mib
    return int(free_mib / (MARGIN * peak_mib)) if peak_mib > 0 else 0


def early_warm_up(
    state: RehearsalState, subject: Subject, fresh: subprocess.Popen[bytes]
) -> EarlyWarmUp | None:
    """Return the warm-up of the first process that resumes, to start before the whole run is measured.

    Returns None if no process waits to resume, or without a helper process: with cached graphs the
    uninterrupted run does not wait. The warm-up does nothing if the driver does not report memory per
    process, because the measured memory would then include it.
    """
    child = state.waiting.get(RESUMED)
    if state.helper is None or child is None:
        return None

    def start() -> None:
        if reports_memory_of_process(fresh.pid):
            warm_up(child, subject.config, state.resolved, STEP)

    return EarlyWarmUp(child, start)


def _stopped_run_facts(
    subject: Subject, gpus: Sequence[GpuFacts], error: StoppedError, duration_s: float
) -> RehearsalFacts:
    """Return the facts of a rehearsal whose run stopped itself because it diverged or did not learn."""
    return RehearsalFacts(
        device="cuda" if gpus else "cpu",
        device_name=gpus[0].name if gpus else "",
        num_ranks=subject.config.distributed.nproc_per_node,
        duration_s=round(duration_s, 2),
        diverged="" if error.is_untrained else str(error),
        untrained=str(error) if error.is_untrained else "",
    )


@contextmanager
def scratch_folder(subject: Subject) -> Iterator[Path]:
    """Create a temporary folder on the file system of the run directory, and remove it afterwards.

    Also removes such folders that killed launchers of this host left behind. Raises `IncompleteError` if the
    folder cannot be created.
    """
    parent = nearest_existing_path(subject.output_dir.parent)
    ours = f".rehearsal-{socket.gethostname()}-"
    remove_abandoned_folders(parent, ours)
    prefix = f"{ours}{os.getpid()}-"
    try:
        made = tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise IncompleteError(f"cannot create a folder in {parent}: {error.strerror}") from None
    with made as folder:
        yield Path(folder)


def remove_abandoned_folders(parent: Path, ours: str) -> None:
    """Remove rehearsal folders left by launchers on this host that no longer run.

    `ours` is the prefix of this host's folders. A host name that only begins like it does not match.
    """
    for folder in parent.glob(f"{ours}*"):
        pid, _, random = folder.name.removeprefix(ours).partition("-")
        if pid.isdecimal() and "-" not in random and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def earlier_pace(subject: Subject, device_name: str) -> float | None:
    """Return the tokens per second of an earlier rehearsal of this config on this device model, or None."""
    own_folder = [] if subject.diff_file is None else [subject.diff_file.parent]
    for folder in (*own_folder, subject.output_dir):
        earlier = read_json(folder / FACTS).get("rehearsal") or {}
        is_same = read_json(folder / RECEIPT).get("config_digest") == digest(subject.config)
        if is_same and earlier.get("speed") and earlier.get("device_name") == device_name:
            return float(earlier["speed"]["tokens_per_second"])
    return None


def detect_stall(state: RehearsalState, child: subprocess.Popen[bytes]) -> WatchdogFacts:
    """Run the launcher's watchdog on a child that hangs, and kill the child.

    `detected_s` of the result is None if the watchdog did not detect the hang in time.
    """
    folder, ranks = state.folder / FOLDER, range(state.ranks)
    watchdog = Watchdog(LIMITS, {rank: {} for rank in ranks}, time.monotonic())
    limit_s = time.monotonic() + STALL_PATIENCE * STALL_S
    while time.monotonic() < limit_s and child.poll() is None:
        stall = watchdog.find_stall({rank: last_heartbeat(folder, rank) for rank in ranks}, time.monotonic())
        if stall is not None:
            return WatchdogFacts(
                budget_s=stall.limit_s, detected_s=round(stall.silence_s, 2), survivors=kill_tree(child)
            )
        time.sleep(POLL_S)
    return WatchdogFacts(budget_s=STALL_S + BEAT_S, detected_s=None, survivors=kill_tree(child))
