"""A rank of the distributed probe that is not what it should be: FAULT says how, on rank 1 alone."""

import dataclasses
import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from neobert.probes.ranks import checks

FAULT, IS_FAULTY = os.environ["FAULT"], os.environ["RANK"] == "1"
TIMEOUT_S = 2.5
OUTLASTS_ANY_TEST_S = 60.0


def other_config() -> None:
    read = checks.read_config
    checks.read_config = lambda path: dataclasses.replace(read(path), seed=99)


def other_code() -> None:
    checks.code_digest = lambda: hashlib.sha256(b"edited on one node").hexdigest()


def wrong_value() -> None:
    """What this rank brings is off by one in one place; what it expects of the others is right."""
    from neobert.probes.ranks import collectives

    right = collectives.contribution

    def contribution(rank: int, size: int, *how: Any) -> Any:
        brought = right(rank, size, *how)
        if rank == 1:
            brought[size // 2] += 1
        return brought

    collectives.contribution = contribution


def other_weights() -> None:
    """Loaded weights differ here, as from a stale copy of a checkpoint."""
    from neobert.probes.ranks import replicas

    load = replicas.load_weights

    def load_stale(model: Any, path: Path) -> None:
        load(model, path)
        for parameter in model.parameters():
            parameter.data += 1e-7

    replicas.load_weights = load_stale


def mean_of_means() -> None:
    """Every rank divides by its own targets: the classical fault, so all of them do it."""
    from neobert.parallel import World

    World.sum_over_ranks = lambda self, values: [value * self.size for value in values]


def crash() -> None:
    """Crash once the other rank ignores the signal by which torchrun ends it."""
    await_file(Path(sys.argv[2], "rank_0.stage"))
    os._exit(3)


def absent() -> None:
    """Alive, and never there, until the other rank has reported."""
    await_file(Path(sys.argv[2], "rank_0.json"))
    sys.exit(0)


def await_file(path: Path) -> None:
    deadline_s = time.monotonic() + OUTLASTS_ANY_TEST_S
    while not path.exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)


def fails() -> None:
    raise RuntimeError("no way to talk to others")


def main() -> None:
    if FAULT in ("crash", "absent"):
        checks.TIMEOUT_S = TIMEOUT_S
    if FAULT in ("mean_of_means", "fails") or (IS_FAULTY and FAULT != "none"):
        globals()[FAULT]()
    checks.main(sys.argv[1:])


if __name__ == "__main__":
    main()
