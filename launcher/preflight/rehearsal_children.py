"""Child processes of a rehearsal: start, warm-up, wait for their results, errors."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from launcher.probes.probe import IncompleteError, Subject, TimedOutError
from launcher.process.compile_cache import has_graphs
from launcher.process.process_tree import kill_at_exit, kill_tree
from launcher.process.trainer_process import start_trainer_process, trainer_packages
from launcher.process.waiting_child import WaitingChild, start_waiting_child
from launcher.rundir.records import Record, read_json
from launcher.terminal.activity import announce
from neobert.config.schema import RunConfig
from neobert.errors import read_error_file

MODULE = "neobert.rehearsal"
FRESH, RESUMED, RESUMED_AGAIN = "fresh", "resumed", "resumed_again"
GRAPHS = "graphs"
"""Part that compiles the evaluation while the uninterrupted run compiles its step; unused if cached."""
PARTS = (FRESH, RESUMED, RESUMED_AGAIN, GRAPHS)
WARM_UP, STEP, EVALUATION = "neobert.rehearsal.warm_up", "step", "evaluation"
COMPILE_WORKERS = ("neobert.rehearsal.compile_workers",)
GRAPHS_S = 120.0
MEASURED = "measured"
"""Name of the uninterrupted run's result after all measurements that other processes would change."""
COMPILED = "compiled"
"""Name of the uninterrupted run's result once its step is compiled."""
OTHERS, HELPER = "others_at_work", "helper_at_work"
REHEARSAL_S = 570.0
POLL_S = 0.05
TAIL_LINES = 3
UNTRAINED = "TRN003"
STOPS = ("NAN001", "SPK001", UNTRAINED)
"""Codes with which a run stops itself because it does not learn."""


class StoppedError(Exception):
    """Raised if the rehearsed run stopped itself with a code of `STOPS`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} [{code}]")
        self.is_untrained = code == UNTRAINED


@dataclass(slots=True)
class EarlyWarmUp:
    """Warm-up of an idle process, started as soon as `start` may be called; measurements wait until it ends.

    Attributes:
        child: process to warm up.
        start: requests the warm-up; called once.
    """

    child: WaitingChild
    start: Callable[[], None]
    is_requested: bool = False

    def start_when_compiled(self, *, has_compiled: bool) -> bool:
        """Start the warm-up once the step is compiled; return whether it has not ended yet."""
        if has_compiled and not self.is_requested:
            self.is_requested = True
            self.start()
        return not self.is_requested or self.child.is_warming_up()


@dataclass(slots=True)
class RehearsalState:
    """Folder, deadline and processes of a rehearsal.

    Attributes:
        folder: on the file system that the run will write to; removed afterwards.
        ranks: number of processes of this node.
        deadline_s: deadline in monotonic seconds; extended when the last other probe has ended.
        waiting: idle processes that have imported their packages, by the part that they will run.
        is_alone: set once no other probe is running.
        helper: process that runs the part `GRAPHS`, and when to kill it, in monotonic seconds.
        early: idle process to warm up once the step is compiled, before anything is measured.
    """

    folder: Path
    ranks: int
    deadline_s: float
    waiting: Mapping[str, WaitingChild] = field(default_factory=dict)
    is_alone: Event = field(default_factory=Event)
    helper: tuple[subprocess.Popen[bytes], float] | None = None
    early: EarlyWarmUp | None = None

    def release_waiting_run(self) -> None:
        """Let the uninterrupted run continue if it is waiting and may continue.

        It evaluates once the helper has ended, and measures once nothing else is running.
        """
        if self.helper is not None and self.helper_file.exists():
            child, until_s = self.helper
            if child.poll() is not None or time.monotonic() > until_s:
                kill_tree(child)
                self.helper_file.unlink()
        has_compiled = self.result(COMPILED, 0).exists()
        if self.early is not None and self.early.start_when_compiled(has_compiled=has_compiled):
            return
        if self.is_alone.is_set() and self.others_file.exists() and not self.helper_file.exists():
            self.deadline_s = time.monotonic() + REHEARSAL_S
            self.others_file.unlink()

    def delay_measurements(self) -> None:
        """Make the uninterrupted run wait before its measurements for `release_waiting_run`."""
        self.others_file.touch()
        self.deadline_s = math.inf  # the others have time limits, and the launcher has one for this wait

    @property
    def others_file(self) -> Path:
        """File that exists while other probes are running; it delays the uninterrupted run's measurements."""
        return self.folder / OTHERS

    @property
    def helper_file(self) -> Path:
        """File that exists while the helper is running; it delays the uninterrupted run's evaluation."""
        return self.folder / HELPER

    @property
    def resolved(self) -> Path:
        """Resolved config of the run, as JSON."""
        return self.folder / "resolved.json"

    @property
    def log(self) -> Path:
        """Log file that all children share."""
        return self.folder / "log"

    @property
    def error_file(self) -> Path:
        """File to which a failed child writes its error."""
        return self.folder / "error.json"

    def result(self, name: str, rank: int) -> Path:
        """Return the file to which a rank writes the result `name`."""
        return self.folder / f"{name}_rank{rank}.json"

    def results(self, name: str) -> list[Record]:
        """Return the result `name` of each rank, empty for a rank that has not written it."""
        return [read_json(self.result(name, rank)) for rank in range(self.ranks)]

    def reported_stage(self, name: str) -> str:
        """Return the stage that rank 0 of a part reported last, or `starting`."""
        with suppress(OSError):
            return (self.folder / f"{name}_stage_rank0").read_text(encoding="utf-8") or "starting"
        return "starting"


@contextmanager
def waiting_children(subject: Subject) -> Iterator[Sequence[WaitingChild]]:
    """Start an idle process for each part of a single-rank rehearsal; yield none for several ranks.

    Several ranks are started by torchrun instead.
    """
    config = subject.config
    is_alone = config.distributed.nproc_per_node == 1
    is_new = is_alone and compiles_static_graphs(config) and not has_graphs()
    with ExitStack() as ends:
        children = []
        for part in PARTS if is_new else PARTS[:-1] if is_alone else ():
            workers = COMPILE_WORKERS if is_new and part in (FRESH, GRAPHS) else ()
            children.append(
                ends.enter_context(
                    start_waiting_child(_part_module(part), (*trainer_packages(config), *workers))
                )
            )
        yield children


def compiles_static_graphs(config: RunConfig) -> bool:
    """Return whether every process of the run compiles the same graphs.

    Without static shapes, the compiled graphs depend on the shapes of the first microbatches.
    """
    return config.trainer.torch_compile and config.datacollator.pack_sequences


def _part_module(part: str) -> str:
    return WARM_UP if part == GRAPHS else MODULE


@contextmanager
def evaluation_helper(state: RehearsalState, *, has_room: bool) -> Iterator[None]:
    """Compile the evaluation in a waiting process, if there is one and `has_room` is true.

    The uninterrupted run then waits before its measurements, as it does while other probes are running.
    """
    with ExitStack() as ends:
        if GRAPHS in state.waiting and has_room:
            child = ends.enter_context(running_part(state, GRAPHS))
            state.helper = child, time.monotonic() + GRAPHS_S
            state.helper_file.touch()
        if state.helper is not None or not state.is_alone.is_set():
            state.delay_measurements()
        yield


def warm_up(child: WaitingChild | None, config: RunConfig, resolved: Path, *only: str) -> None:
    """Let an idle process compile the graphs of its later training now, without writing files of the run.

    Does nothing if there is no process, or if the graphs depend on the data.

    `only`: `STEP` for a process that never evaluates.
    """
    if child is not None and compiles_static_graphs(config):
        child.warm_up(WARM_UP, [str(resolved), *only])


@contextmanager
def running_part(
    state: RehearsalState, name: str, kill: Callable[[subprocess.Popen[bytes]], object] = kill_tree
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the ranks of a part, and kill them at the end of the block."""
    with kill_at_exit(lambda: start_part(state, name)) as child:
        try:
            yield child
        finally:
            kill(child)


def start_part(state: RehearsalState, name: str) -> subprocess.Popen[bytes]:
    """Start a part in the process that waits for it, or in a new process if none is waiting."""
    words = [name, str(state.resolved), str(state.folder)]
    if name == GRAPHS:
        words = [str(state.resolved), EVALUATION]
    waits = state.waiting.get(name)
    if waits and (child := waits.start(words, state.log, state.error_file)):
        return child
    command = [sys.executable, "-P", "-m", _part_module(name), *words]
    if state.ranks > 1:
        torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
        command = [*torchrun, "--nproc-per-node", str(state.ranks), "-m", MODULE, *words]
    return start_trainer_process(command, state.log, state.error_file, ranks=state.ranks)


def wait_for_results(
    state: RehearsalState,
    part: str,
    child: subprocess.Popen[bytes],
    result: str = "",
    *,
    is_announced: bool = True,
) -> list[Record]:
    """Return the results of a part once all ranks have written theirs or a rank is out of memory.

    Args:
        result: name of the result files; empty for the name of the part.
        is_announced: whether to print the progress of the part.

    Raises `TimedOutError` at the rehearsal's deadline, and the error of a part that ended early.
    """
    result, announced = result or part, ""
    while not _is_done(state, part, result):
        if child.poll() is not None and not _is_done(state, part, result):
            raise _early_end_error(state, part, child)
        state.release_waiting_run()
        if time.monotonic() > state.deadline_s:
            raise TimedOutError(
                f"the rehearsal took over {REHEARSAL_S:g} s and was killed at: {state.reported_stage(part)}"
            )
        step = state.reported_stage(part)
        if is_announced and step != announced:
            announce(f"rehearsal: {step}")
            announced = step
        time.sleep(POLL_S)
    return state.results(result)


def _is_done(state: RehearsalState, part: str, result: str) -> bool:
    if all(state.result(result, rank).exists() for rank in range(state.ranks)):
        return True
    return any(each.get("out_of_memory") for each in state.results(part))


def _early_end_error(state: RehearsalState, part: str, child: subprocess.Popen[bytes]) -> Exception:
    """Return the error of a part that ended early: StoppedError if the run does not learn."""
    error = read_error_file(state.error_file)
    if error is not None and error.code in STOPS:
        return StoppedError(error.code, error.message)
    return IncompleteError(
        f"{_failure_reason(state, child)}; the rehearsal ended at: {state.reported_stage(part)}"
    )


def _failure_reason(state: RehearsalState, child: subprocess.Popen[bytes]) -> str:
    error = read_error_file(state.error_file)
    if error is not None:
        return "; ".join(filter(None, (f"{error.located_message} [{error.code}]", error.hint)))
    lines = state.log.read_text(encoding="utf-8", errors="replace").split("\n")
    tail = [line.strip() for line in lines if line.strip()][-TAIL_LINES:]
    return " / ".join([f"exit {child.returncode}", *tail])
