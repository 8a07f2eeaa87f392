"""Tokens per second of the real trainer, this commit against an earlier one, in turns on one GPU.

    git worktree add /tmp/earlier COMMIT
    python benchmarks/against_commit.py /tmp/earlier WORK_DIR --output DIR       # rows of 1024 and 4096
    python benchmarks/against_commit.py /tmp/earlier WORK_DIR --rounds 1 --tiny  # a dry run on any machine

Each turn is `trainer_throughput.py` of its own commit, in its own process; the first of each fills the
compilers' caches and is not counted. The value is the lower of the ratios of the two row lengths: the median
of this commit over that of the earlier one. The JSON file is written after each round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from measurement import write_measurement

HERE = Path(__file__).resolve().parents[1]
ROW_LENGTHS = (1024, 4096)
LEAST_RATIO = 0.99


def tokens_per_second(tree: Path, work: Path, row_length: int, options: list[str]) -> float:
    """Run the trainer of a commit. Raises `RuntimeError` with its last output where it failed."""
    script = tree / "benchmarks" / "trainer_throughput.py"
    paths = [str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            str(script),
            str(work),
            "--row-length",
            str(row_length),
            "--output",
            folder,
        ]
        done = subprocess.run(
            [*command, *options],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=False,
        )
        suffix = "" if row_length == ROW_LENGTHS[0] else f"-{row_length}"
        figure = Path(folder, f"trainer-throughput{suffix}.json")
        value = json.loads(figure.read_text())["value"] if figure.exists() else None
    if value is None:
        raise RuntimeError(f"{script}: {(done.stdout + done.stderr)[-3000:]}")
    return float(value)


def take_turns(
    trees: dict[str, Path], work: Path, row_lengths: Sequence[int], rounds: int, options: list[str]
) -> Iterator[dict[str, Any]]:
    """Measure both commits in turns; yield the results so far, by row length, after each round.

    The first turn of each commit and row length is not counted.
    """
    speeds = {length: {name: list[float]() for name in trees} for length in row_lengths}
    for turn in range(rounds + 1):
        for length, (name, tree) in product(row_lengths, trees.items()):
            speed = tokens_per_second(tree, work / name, length, options)
            print(f"rows of {length}, turn {turn}: {name} {speed:,.0f} tokens/s", flush=True)
            if turn:
                speeds[length][name].append(speed)
        if turn:
            yield {
                str(length): {"tokens_per_sec": found, "ratio": ratio(found)}
                for length, found in speeds.items()
            }


def ratio(speeds: dict[str, list[float]]) -> float:
    return statistics.median(speeds["after"]) / statistics.median(speeds["before"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("earlier", type=Path, help="a checkout of the earlier commit")
    parser.add_argument("work", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--row-length", type=int, action="append", choices=ROW_LENGTHS, help="only this one")
    parser.add_argument("--kernels", default="fused")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    trees = {"before": chosen.earlier.resolve(), "after": HERE}
    options = ["--kernels", chosen.kernels, "--steps", str(chosen.steps), *["--tiny"] * chosen.tiny]
    lengths = chosen.row_length or ROW_LENGTHS
    turns = take_turns(trees, chosen.work.resolve(), lengths, chosen.rounds, options)
    for number, results in enumerate(turns, 1):
        lowest = min(result["ratio"] for result in results.values())
        print(f"lowest ratio after {number} of {chosen.rounds} rounds: {lowest:.4f}", flush=True)
        if chosen.output:
            write_measurement(
                chosen.output / "refactor-throughput.json",
                lowest,
                "tokens/s over that of the earlier commit, lowest of the row lengths",
                LEAST_RATIO,
                results,
                is_complete=number == chosen.rounds,
            )


if __name__ == "__main__":
    main()
