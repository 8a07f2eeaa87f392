"""Train a run on 4, then 2, then 4 ranks that keep its step, and record losses and samples of every step.

python -m tests.faults.elastic_sessions FOLDER

Prints a JSON object: for the undisturbed run, the elastic one, and those with a planted fault, the losses and
the sample ids of every step. All but the undisturbed one continue from copies of the same first session.
"""

import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from neobert.training.loop import steps
from profiles.kept_step import accumulation_for
from tests.faults import nursery
from tests.faults.sharded_sessions import losses
from tests.training.conftest import read_lines, write_corpus, write_run

STEP = 4
"""Microbatches of a step."""
SESSIONS = ((4, 4), (2, 8), (4, 12))
"""Ranks of each session, and its last step."""
END = SESSIONS[-1][1]
SEEN = "seen_rank{}.jsonl"


def main(folder: Path) -> None:
    corpus = write_corpus(folder)
    real = steps.sum_counts
    steps.sum_counts = recorded(real)  # every rank is forked from here
    first, second, third = SESSIONS
    begun = go(folder / "begun", corpus, [first])
    for name in ("elastic", "skipped", "divisor"):
        shutil.copytree(folder / "begun", folder / name)
    report = {
        "begun": begun,
        "undisturbed": go(folder / "undisturbed", corpus, [(4, END)]),
        "elastic": go(folder / "elastic", corpus, [second, third]),
        "skipped": go(folder / "skipped", corpus, [second], skip_a_microbatch),
    }
    steps.accumulate = divided_by_the_ranks_before(steps.accumulate)
    report["divisor"] = go(folder / "divisor", corpus, [second])
    print(json.dumps(report))


def go(
    run_dir: Path,
    corpus: dict[str, str],
    sessions: Sequence[tuple[int, int]],
    fault: Callable[[], None] | None = None,
) -> dict[str, Any]:
    codes = []
    for ranks, last_step in sessions:
        sections: dict[str, Any] = {
            "trainer": {
                "max_steps": last_step,
                "gradient_accumulation_steps": accumulation_for(STEP, ranks, 1),
                "logging_steps": 1,
                "eval_steps": 0,
            },
            "scheduler": {"total_steps": END},
            "distributed": {"nproc_per_node": ranks},
        }
        resolved = write_run(run_dir, corpus, sections)
        codes += nursery.run_ranks(resolved, ranks, fault if ranks < STEP else None)
    return {"codes": codes, "losses": losses(run_dir), "samples": samples(run_dir)}


def recorded(agree: Callable[..., Any]) -> Callable[..., Any]:
    """Have each rank record the sample ids of the microbatches of every step."""

    def record(trainer: Any, batches: Sequence[Any]) -> Any:
        row = {"step": trainer.progress.step + 1, "ids": [batch.sample_ids.tolist() for batch in batches]}
        with (trainer.run_dir / SEEN.format(trainer.world.rank)).open("a") as file:
            file.write(json.dumps(row) + "\n")
        return agree(trainer, batches)

    return record


def skip_a_microbatch() -> None:
    """Have this rank leave out the first microbatch of its session."""
    real, is_skipped = steps.fetch_batches, []

    def fetch_batches(trainer: Any) -> Any:
        if not is_skipped:
            is_skipped.append(next(trainer.batches))
        return real(trainer)

    steps.fetch_batches = fetch_batches


def divided_by_the_ranks_before(accumulate: Callable[..., Any]) -> Callable[..., Any]:
    """Have fewer ranks divide the gradient by the number of ranks before."""

    def accumulated(trainer: Any, batches: Sequence[Any], num_targets: int) -> Any:
        return accumulate(trainer, batches, num_targets * STEP // trainer.world.dp_size)

    return accumulated


def samples(run_dir: Path) -> dict[int, list[list[int]]]:
    """Return the sample ids of every microbatch by step, whichever rank has read it."""
    found = defaultdict(list)
    for path in sorted(run_dir.glob(SEEN.format("*"))):
        for row in read_lines(path):
            found[row["step"]] += row["ids"]
    return {step: sorted(ids) for step, ids in sorted(found.items())}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
