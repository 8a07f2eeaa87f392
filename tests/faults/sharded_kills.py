"""Kill sharded runs of two ranks at random, half of the times while rank 0 joins the rows of a save.

python -m tests.faults.sharded_kills --kills 20

After each kill the newest whole checkpoint verifies and is not older than before, and no folder of an
unfinished save is taken for one. Each run is resumed until it gets through: its metrics are then those of an
undisturbed run, to the last bit. Prints one JSON object; exits 1 where one kill did not hold.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from neobert.export import lazy_weights
from neobert.training.checkpoint import content, parts
from tests.faults import nursery
from tests.faults.random_kills import LATEST, Tally, judge, survey
from tests.training.conftest import exact_lines, write_corpus, write_run

RANKS, STEPS, SAVED_EVERY = 2, 12, 2
FILE_BYTES = 4096  # several files of weights, and of each rank's rows


@dataclass
class ShardedTally(Tally):
    """Counts of kills and of their results.

    Attributes:
        while_joining: kills that left the rows of all ranks and not the manifest.
    """

    while_joining: int = 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    requested = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="sharded-kills-") as folder:
        tally = strike(Path(folder), requested.kills, requested.seed)
    print(json.dumps(asdict(tally)))
    is_enough = tally.kills >= requested.kills and tally.while_joining >= requested.kills // 2
    return int(bool(tally.faults) or not is_enough)


def strike(folder: Path, kills: int, seed: int) -> ShardedTally:
    """Kill as often as asked, half of it while rows are joined, over as many runs as that takes."""
    corpus, chance, tally = write_corpus(folder), random.Random(seed), ShardedTally(seed)

    def make(name: str) -> Path:
        every = {"max_steps": STEPS, "save_steps": SAVED_EVERY, "eval_steps": 6, "logging_steps": 1}
        sharing = {"nproc_per_node": RANKS, "mode": "fsdp2"}
        best = {"metric_for_best_model": "eval/loss"}
        return write_run(folder / name, corpus, {"trainer": every | best, "distributed": sharing})

    undisturbed = make("undisturbed")
    run_ranks(undisturbed, small_files)  # prepares the text
    began_s = time.monotonic()
    run_ranks(make("timed"), small_files)
    longest_s, expected = time.monotonic() - began_s, exact_lines(undisturbed)
    while not tally.faults and (tally.kills < kills or tally.while_joining < kills // 2):
        run_dir = make(f"run-{tally.runs}")
        kill_until_it_is_through(run_dir, longest_s, kills, chance, tally)
        if not tally.faults:
            judge(run_dir, expected, tally)
        tally.runs += 1
    return tally


def kill_until_it_is_through(
    run_dir: Path, longest_s: float, kills: int, chance: random.Random, tally: ShardedTally
) -> None:
    root, verified = run_dir / "checkpoints", -1
    while True:
        is_enough = tally.kills >= kills and tally.while_joining >= kills // 2
        at_any_time = partial(die_within, chance.uniform(0, LATEST * longest_s))
        at_a_join = partial(die_at_a_join, chance.randint(1, 3), chance.uniform(0, 0.02))
        fault = small_files if is_enough else at_a_join if tally.kills % 2 else at_any_time
        code = run_ranks(run_dir, fault)
        if code == 0:
            tally.resumed = tally.kills
            return
        if code != -signal.SIGKILL:
            tally.faults.append(f"exit code {code}: {(run_dir / 'log_0').read_text()[-2000:]}")
            return
        tally.kills += 1
        # The folder of a save has the rows of all ranks before the joined weights, and its manifest last.
        tally.while_joining += any((each / parts.PARTS).is_dir() for each in root.glob(".tmp-*"))
        verified = survey(root, verified, tally)


def run_ranks(run_dir: Path, fault: Callable[[], None]) -> int:
    """Run the ranks with a fault in rank 0; return its exit code. If it dies, the other one is killed."""
    port = nursery.free_port()
    first, *others = [
        nursery.begin(run_dir, rank, RANKS, port, small_files if rank else fault) for rank in range(RANKS)
    ]
    code = nursery.end(first)
    for pid in others:
        if code:
            os.kill(pid, signal.SIGKILL)
        nursery.end(pid)
    return code


def small_files() -> None:
    lazy_weights.FILE_BYTES = FILE_BYTES


def die_within(delay_s: float) -> None:
    """Kill this process after a time."""
    small_files()

    def die() -> None:
        time.sleep(delay_s)
        os.kill(os.getpid(), signal.SIGKILL)

    Thread(target=die, daemon=True).start()


def die_at_a_join(number: int, delay_s: float) -> None:
    """Kill this process a short time after the rows of all ranks are in the folder of a save."""
    small_files()
    joined, calls = content.open_joined_parts, iter(range(number, -(10**6), -1))

    def join(*arguments: Any) -> Any:
        if next(calls) == 1:
            die_within(delay_s)
        return joined(*arguments)

    content.open_joined_parts = join


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
