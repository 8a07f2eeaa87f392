"""Kill runs at random times, resume them, and hold what they leave to a run that was never disturbed.

python -m tests.faults.random_kills --kills 200

Every run is killed by SIGKILL until it gets through. After each kill, whatever was verified before still is.
At its end its metrics are, to the last bit and line for line, those of the undisturbed run. Prints one JSON
object; exits 1 where one kill did not hold.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from neobert.runfiles.checkpoint.folders import checkpoint_steps, find_checkpoint, follow_pointer
from neobert.runfiles.checkpoint.manifest import verify_checkpoint
from tests.faults import nursery
from tests.training.conftest import exact_lines, read_lines, write_corpus, write_run

LATEST = 1.1  # times the length of a session that starts afresh: some get through
LONGER = 1.5  # times that, after a kill before a save: the machine is busier than it was
MEMORY = Path("/dev/shm")
STEPS = 40  # training is most of a session then, not starting it
RUN = {
    "trainer": {
        "save_steps": 1,
        "eval_steps": 10,
        "logging_steps": 1,
        "metric_for_best_model": "eval/loss",
    }
}


@dataclass
class Tally:
    """What came of it."""

    seed: int
    kills: int = 0
    resumed: int = 0
    during_a_save: int = 0
    with_progress: int = 0
    runs: int = 0
    faults: list[str] = field(default_factory=list)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run")
    parser.add_argument("--folder", type=Path, help="where the runs go; memory, unless a disk is to be tried")
    requested = parser.parse_args(arguments)
    where = requested.folder or (MEMORY if MEMORY.is_dir() else None)
    with tempfile.TemporaryDirectory(prefix="random-kills-", dir=where) as folder:
        tally = strike(Path(folder), requested.kills, requested.seed, requested.steps)
    print(json.dumps(asdict(tally)))
    return int(bool(tally.faults) or tally.resumed < requested.kills)


def strike(folder: Path, kills: int, seed: int, steps: int) -> Tally:
    """Kill as often as asked, over as many runs as that takes."""
    corpus, chance = write_corpus(folder), random.Random(seed)

    def make(name: str) -> Path:
        return write_run(folder / name, corpus, {"trainer": RUN["trainer"] | {"max_steps": steps}})

    undisturbed = make("undisturbed")
    nursery.end(nursery.begin(undisturbed))  # prepares the text
    longest_s = min(duration(make(f"timed-{number}")) for number in range(3))
    tally, expected = Tally(seed), exact_lines(undisturbed)
    while tally.kills < kills and not tally.faults:
        run_dir = make(f"run-{tally.runs}")
        kill_until_it_is_through(run_dir, longest_s, kills, chance, tally)
        judge(run_dir, expected, tally)
        tally.runs += 1
    return tally


def duration(run_dir: Path) -> float:
    started_s = time.monotonic()
    nursery.end(nursery.begin(run_dir))
    return time.monotonic() - started_s


def kill_until_it_is_through(
    run_dir: Path, longest_s: float, kills: int, chance: random.Random, tally: Tally
) -> None:
    verified = -1
    while True:
        pid = nursery.begin(run_dir)
        limit_s = chance.uniform(0, LATEST * longest_s) if tally.kills < kills else 600.0
        code = nursery.ended_within(pid, limit_s)
        if code is None:
            os.kill(pid, signal.SIGKILL)
            code = nursery.end(pid)
        if code != -signal.SIGKILL:
            tally.resumed = tally.kills if code == 0 else tally.resumed
            if code:
                tally.faults.append(f"exit code {code}: {(run_dir / 'log_0').read_text()[-2000:]}")
            return
        tally.kills += 1
        before, verified = verified, survey(run_dir / "checkpoints", verified, tally)
        longest_s *= 1 if verified > before else LONGER


def survey(root: Path, verified: int, tally: Tally) -> int:
    """Return the newest step that verifies, which may not be older than before, and look at the pointer."""
    tally.during_a_save += any(root.glob(".tmp-*")) if root.is_dir() else False
    found = find_checkpoint(root, "auto")
    newest = -1 if found is None else found[1].step
    tally.with_progress += newest > verified
    if newest < verified:
        tally.faults.append(
            f"kill {tally.kills}: step {verified} was verified, and now {newest} is the newest"
        )
    pointed = follow_pointer(root, "latest")
    if pointed is not None:
        verify_checkpoint(pointed)
    return newest


def judge(run_dir: Path, expected: list[dict[str, object]], tally: Tally) -> None:
    """Hold a run that got through to the undisturbed one."""
    root, last_step = run_dir / "checkpoints", [expected[-1]["step"]]
    left = [path.name for path in root.iterdir() if path.name.startswith((".tmp-", ".trash-"))]
    complaints = {
        "its metrics are not those of the undisturbed run": exact_lines(run_dir) != expected,
        f"it left {left}": bool(left),
        "its last checkpoint is not that of its last step": checkpoint_steps(root)[-1:] != last_step,
        "it has no best checkpoint": follow_pointer(root, "best") is None,
        "its heartbeats are out of order": not rises(read_lines(run_dir / "heartbeat_rank0.jsonl")),
    }
    tally.faults += [f"run {tally.runs}: {complaint}" for complaint, holds in complaints.items() if holds]


def rises(beats: list[dict[str, int]]) -> bool:
    numbers = [beat["seq"] for beat in beats]
    return numbers == sorted(set(numbers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
