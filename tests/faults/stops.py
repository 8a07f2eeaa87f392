"""Ask a run to stop in each of its phases, with one process and with two. Prints what came of it as JSON.

python -m tests.faults.stops FOLDER [PHASE...]

The last rank dwells in the phase until the request has come; a control dwells nowhere, is asked nothing, and
gets through. Every rank is asked twice, as a scheduler does.
"""

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from neobert.data.batches.streams import TrainStream
from neobert.errors import ProjectError
from neobert.objectives import TokenObjective
from neobert.parallel import World
from neobert.runfiles.checkpoint.folders import find_checkpoint
from neobert.training.checkpoint import publish
from neobert.training.checkpoint.save import Saver
from neobert.training.loop import assembly
from tests.faults import nursery
from tests.training.conftest import write_corpus, write_run

PATIENCE_S = 60.0
RUN = {"max_steps": 12, "save_steps": 4, "eval_steps": 6, "logging_steps": 1}
ANSWERED_S = 1.0
NOWHERE = "nowhere"
FIRST = "first"  # where the first rank dwells, and not the last one


def main(arguments: list[str]) -> int:
    folder, *phases = arguments
    root = Path(folder)
    corpus = write_corpus(root)
    found = {}
    for ranks in (1, 2):
        for phase in phases or (NOWHERE, *PLACES):
            run_dir = root / f"{phase}-{ranks}"
            write_run(run_dir, corpus, {"trainer": RUN, "distributed": {"nproc_per_node": ranks}})
            found[f"{phase}, {ranks}"] = stop(run_dir, phase, ranks)
    print(json.dumps(found))
    return 0


def stop(run_dir: Path, phase: str, ranks: int) -> dict[str, Any]:
    """Ask all ranks to stop while the last one dwells in the phase; return how they ended."""
    ready = run_dir / "ready"
    pids = begin(run_dir, ranks, None if phase == NOWHERE else partial(PLACES[phase], ready))
    if phase != NOWHERE:
        await_file(ready)
        for _ in range(2):
            for pid in pids:
                os.kill(pid, signal.SIGTERM)
            time.sleep(0.02)
        asked_file(ready).touch()
    codes = [nursery.end(pid) for pid in pids]
    outcome = json.loads((run_dir / "outcome.json").read_text(encoding="utf-8"))
    return {"codes": codes, "outcome": outcome, "saved": saved_step(run_dir)}


def begin(run_dir: Path, ranks: int, prepare: Callable[[], None] | None) -> list[int]:
    chosen, port = 0 if run_dir.name.startswith(FIRST) else ranks - 1, nursery.free_port()
    return [
        nursery.begin(run_dir, rank, ranks, port, prepare if rank == chosen else None)
        for rank in range(ranks)
    ]


def saved_step(run_dir: Path) -> int | None:
    try:
        found = find_checkpoint(run_dir / "checkpoints", "auto")
    except ProjectError:
        return None
    return None if found is None else found[1].step


def asked_file(ready: Path) -> Path:
    """Return the file that exists once the ranks were asked to stop."""
    return ready.with_name("requested")


def await_file(path: Path) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not path.exists() and time.monotonic() < deadline_s:
        time.sleep(0.005)


def dwell(place: Any, name: str, ready: Path, call: int) -> None:
    """Have a function, at one of its calls, say that it is there, and wait until something has happened."""
    real, calls = getattr(place, name), iter(range(10**6))

    def dwelling(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            ready.touch()
            wait_for_requests(asked_file(ready))
        return real(*args, **kwargs)

    setattr(place, name, dwelling)


def wait_for_requests(requested: Path) -> None:
    """Sleep on until a handler has run and both requests were sent, as a computation would."""
    before, heard = signal.getsignal(signal.SIGTERM), []

    def hear(number: int, frame: Any) -> None:
        heard.append(number)
        before(number, frame)

    signal.signal(signal.SIGTERM, hear)
    deadline_s = time.monotonic() + PATIENCE_S
    while not heard and time.monotonic() < deadline_s:
        time.sleep(0.005)
    await_file(requested)  # or else the second request could come after the end
    signal.signal(signal.SIGTERM, before)


def fail_a_save(ready: Path) -> None:
    """Have the disk refuse the first save, after the request has come; the next save waits for this one."""
    real, calls = publish.seal_checkpoint, iter(range(10**6))

    def seal(*args: Any) -> None:
        if next(calls) == 0:
            ready.touch()
            await_file(asked_file(ready))
            time.sleep(ANSWERED_S)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*args)

    publish.seal_checkpoint = seal


PLACES: dict[str, Callable[[Path], None]] = {
    f"{FIRST} preparation": lambda ready: dwell(assembly, "prepare", ready, 0),
    "preparation": lambda ready: dwell(assembly, "prepare", ready, 0),
    "start": lambda ready: dwell(assembly, "build_trainer", ready, 0),
    "warm-up": lambda ready: dwell(TokenObjective, "forward", ready, 0),
    "step": lambda ready: dwell(TokenObjective, "forward", ready, 11),
    "evaluation": lambda ready: dwell(TokenObjective, "evaluate", ready, 5),
    "save": lambda ready: dwell(Saver, "begin", ready, 0),
    f"{FIRST} failed save": fail_a_save,
    "data wait": lambda ready: dwell(TrainStream, "__next__", ready, 10),
    "collective": lambda ready: dwell(World, "sum_over_ranks", ready, 9),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
