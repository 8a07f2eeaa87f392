"""One session of the trainer: start, supervision, stop after a hang, result."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from launcher.process import trainer_process
from launcher.process.process_tree import dump_stacks, find_workers, stop_orphaned_ranks, stop_then_kill
from launcher.process.signal_forwarding import Forwarder
from launcher.process.trainer_process import AGAIN, start_trainer_process, wait_for_child
from launcher.run.launch_context import Launch, deadline_environment
from launcher.run.launch_records import record_trainer
from launcher.run.summary import saved_step
from launcher.rundir.records import Record, file_stamp
from launcher.rundir.stalls import AwakeClock, Stall, Watchdog
from launcher.terminal import console
from neobert.errors import ProjectError
from neobert.plurals import counted
from neobert.printable import printable
from neobert.runfiles.attempt import TOKEN_ENV
from neobert.runfiles.run_dir import LOGS, OUTCOME, RESOLVED

# torchrun's report of each rank that had ended when it looked, at the end of its log.
ENDED = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\n\s*exitcode\s*: (-?\d+) \(pid: (\d+)\)")
# Its message before it stops the ranks that outlive the first failure: by SIGTERM, and after 30 s by SIGKILL.
STOPPED_BY_AGENT = re.compile(r"Sending process (\d+) closing signal")
CHECKS_PER_HEARTBEAT = 4
UNKILLABLE_S = 10.0


class StalledError(Exception):
    """Raised while the launcher waits for the trainer, if the trainer hangs."""

    def __init__(self, stall: Stall) -> None:
        super().__init__(str(stall))
        self.stall = stall


class EndedRank(NamedTuple):
    """Exit code of a rank (negative for a signal), and whether torchrun stopped it."""

    rank: int
    code: int
    was_stopped_by_torchrun: bool


@dataclass(frozen=True, slots=True)
class Session:
    """Result of one session of the trainer.

    Attributes:
        code: exit code of the child, negative for a signal.
        stall: the hang after which the watchdog stopped the session; None if it did not hang.
        has_begun: whether the session wrote a heartbeat.
        first_step: step of the newest checkpoint before the session; 0 if there was none.
        output: output of torchrun; empty without torchrun.
        num_stuck: number of processes of the session that survived SIGKILL.
        earlier_outcome: stamp of the outcome.json from before the session, on a worker node.
    """

    code: int
    stall: Stall | None
    has_begun: bool
    first_step: int
    output: str
    num_stuck: int = 0
    earlier_outcome: tuple[int, int] | None = None

    @property
    def ended_ranks(self) -> list[EndedRank]:
        """Ended ranks in torchrun's report, in its order: the rank that failed first comes last."""
        stopped = set(STOPPED_BY_AGENT.findall(self.output))
        return [
            EndedRank(int(rank), int(code), pid in stopped) for rank, code, pid in ENDED.findall(self.output)
        ]

    @property
    def trainer_code(self) -> int:
        """Exit code of the trainer itself: torchrun exits with 1 for any code of its ranks."""
        return self.ended_ranks[-1].code if self.code > 0 and self.ended_ranks else self.code


def lost_rank(session: Session, *, has_agent: bool) -> tuple[int | None, int] | None:
    """Return the killed rank (None: torchrun itself) and its signal, or None if no process was killed.

    `has_agent`: the child process is torchrun, not the trainer. Other ranks fail because the killed rank is
    missing. torchrun polls ten times a second and may report one of them as the first failure; ranks that
    torchrun itself stopped are skipped.
    """
    if session.code < 0:
        return None if has_agent else 0, -session.code
    lost = (
        each for each in reversed(session.ended_ranks) if each.code < 0 and not each.was_stopped_by_torchrun
    )
    return next(((each.rank, -each.code) for each in lost), None)


def run_session(
    launch: Launch, forwarder: Forwarder, on_tick: Callable[[], None], *, is_restart: bool
) -> Session:
    """Start the trainer and supervise it until it ends or has to be stopped.

    Args:
        is_restart: whether this launch restarts the run after a failed session.
    """
    launch.error_file.unlink(missing_ok=True)
    if is_restart:
        (launch.folder / OUTCOME).unlink(missing_ok=True)  # it belongs to the previous session
    # Heartbeats of earlier sessions stay in the files: only newer sequence numbers count for this session.
    before, first_step = launch.newest_heartbeats(), saved_step(launch.folder)
    earlier_outcome = None if launch.owns_run else file_stamp(launch.folder / OUTCOME)
    log_start = launch.log.stat().st_size if launch.log.exists() else 0
    child = start_trainer(launch, is_restart=is_restart)
    forwarder.adopt(child)
    if launch.owns_run:
        with tolerate_full_disk("the trainer's process to manifest.json"):
            record_trainer(launch.folder, child.pid)
    code, stall = watch_trainer(launch, child, on_tick, before)
    num_stuck = stop_orphans(launch) + (child.poll() is None)
    has_begun = any(
        beat.get("seq") != before[rank].get("seq") for rank, beat in launch.newest_heartbeats().items()
    )
    output = _read_from(launch.log, log_start) if launch.has_agent else ""
    return Session(code, stall, has_begun, first_step, output, num_stuck, earlier_outcome)


def start_trainer(launch: Launch, *, is_restart: bool) -> subprocess.Popen[bytes]:
    """Start the trainer in the waiting process; in a new process for a restart, or if none is waiting."""
    environment, child = {TOKEN_ENV: launch.attempt, **deadline_environment(launch.deadlines)}, None
    if launch.waiting is not None and not is_restart:
        arguments = launch.command[launch.command.index(trainer_process.TRAINER_MODULE) + 1 :]
        child = launch.waiting.start(arguments, launch.log, launch.error_file, launch.held, environment)
    command = [*launch.command, AGAIN] if is_restart else launch.command
    ranks = launch.topology.nproc_per_node
    return child or start_trainer_process(
        command, launch.log, launch.error_file, launch.held, ranks, environment
    )


def _read_from(log: Path, offset: int) -> str:
    """Return the text of a log from a byte offset on; empty if the log does not exist."""
    with suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(offset)
        return file.read().decode("utf-8", errors="replace")
    return ""


def stop_orphans(launch: Launch) -> int:
    """Stop orphaned ranks of this run, so that no two sessions write to it; return how many survive."""
    count, num_stuck = stop_orphaned_ranks(launch.folder / RESOLVED, launch.limits.grace_s)
    if count:
        console.log(f"stopped {counted(count, 'rank')} left running by an ended session")
    return num_stuck


def watch_trainer(
    launch: Launch, child: subprocess.Popen[bytes], on_tick: Callable[[], None], before: Mapping[int, Record]
) -> tuple[int, Stall | None]:
    """Wait for the trainer to end, and stop it if it hangs.

    Returns its exit code (negative for a signal), and the stall, or None if it did not hang.

    Args:
        before: newest heartbeats from before the start.
    """
    clock = AwakeClock()
    watchdog = Watchdog(launch.limits, before, clock())
    pause_s, checked_at_s = launch.limits.heartbeat_interval_s / CHECKS_PER_HEARTBEAT, clock()

    def check_progress() -> None:
        nonlocal checked_at_s
        on_tick()
        now_s = clock()
        # Check several times per heartbeat interval, so that a hang is reported soon after its limit.
        if now_s - checked_at_s >= pause_s:
            checked_at_s = now_s
            stall = watchdog.find_stall(launch.newest_heartbeats(), now_s)
            if stall is not None:
                raise StalledError(stall)

    try:
        return wait_for_child(child, check_progress), None
    except StalledError as stalled:
        stop_stalled_ranks(launch, child, stalled.stall)
        return _exit_code_without_wait(child), stalled.stall


def _exit_code_without_wait(child: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a killed child; the code of SIGKILL if it hangs in the kernel."""
    try:
        return child.wait(UNKILLABLE_S)
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL


def stop_stalled_ranks(launch: Launch, child: subprocess.Popen[bytes], stall: Stall) -> None:
    """Write the stacks of all ranks to the log folder, report the hang, then stop the ranks."""
    workers = find_workers(child, has_agent=launch.has_agent)
    note = f"the stacks of all ranks are in {launch.folder / LOGS}/rank_*.stacks"
    try:
        dump_stacks(workers, launch.folder, str(stall))
    except OSError as error:  # a full or missing disk may be the cause of the hang
        note = f"could not write stacks: {error}"
    console.log(printable(f"{stall}; {note}"))
    stop_then_kill(child, workers, launch.limits.grace_s)


@contextmanager
def tolerate_full_disk(name: str) -> Iterator[None]:
    """Log a warning if a record cannot be written, instead of ending the run or changing its exit code.

    Args:
        name: the record and its file, as in "the outcome to outcome.json".
    """
    try:
        yield
    except ProjectError as error:
        console.log(printable(f"warning: could not write {name}: {error.located_message}"))
