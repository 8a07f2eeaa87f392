"""Held-out loss of this trainer and of `transformers.Trainer` at equal tokens, three seeds each.

    python benchmarks/loss_at_equal_tokens.py WORK RESULTS [--seconds 560] [--output DIR]

WORK holds what `passages.py` wrote, and the tokenizer; RESULTS keeps finished runs (`trial_runner.py`), and
those of `time_to_loss.py` if it is given the same folder. Each number of tokens is a run of its own whose
schedule ends there. Rows of this trainer hold whole passages and some filler: it takes a few more steps, and
never more tokens than the peer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from measurement import write_measurement
from trial_runner import compare
from trials import (
    CONFIG,
    INTERVALS,
    RECIPE,
    ROW_LENGTH,
    ROWS,
    SEEDS,
    Trial,
    column,
    difference,
    peer,
    runs_of,
    seeds_of,
    summary,
)

TOKENS = (50_000_000, 100_000_000)
FILL = 0.9935
"""Tokens of this text over places in packed rows of 512, at most (docs/learning.md)."""
PEER_DECAY = 0.01


def of_peer(chosen: argparse.Namespace, tokens: int, seed: int) -> Trial:
    steps = -(-tokens // (ROWS[chosen.size] * ROW_LENGTH))
    return peer(
        chosen.work,
        f"peer-{chosen.rate:g}-{steps}-seed-{seed}",
        steps=steps,
        rate=chosen.rate,
        weight_decay=PEER_DECAY,
        seed=seed,
        size=chosen.size,
    )


def own(chosen: argparse.Namespace, tokens: int) -> Trial:
    steps = int(tokens / (ROWS[chosen.size] * ROW_LENGTH * FILL))
    return seeds_of(chosen.work, steps, chosen.size)


def wanted(chosen: argparse.Namespace) -> Iterator[Trial]:
    for tokens in chosen.tokens:
        yield own(chosen, tokens)
        yield from (of_peer(chosen, tokens, seed) for seed in SEEDS)


def judge(chosen: argparse.Namespace) -> dict[int, dict[str, Any]]:
    """Return, for each number of tokens, both summaries and the difference; None where it is not known."""
    found = {}
    for tokens in chosen.tokens:
        mine = summary(runs_of(chosen.results, own(chosen, tokens).name))
        names = [of_peer(chosen, tokens, seed).name for seed in SEEDS]
        theirs = summary([run for name in names for run in runs_of(chosen.results, name)])
        row: dict[str, Any] = {"ours": mine, "peer": theirs, "difference": None}
        if mine is not None and theirs is not None and mine["tokens"] <= theirs["tokens"]:
            row["difference"] = difference(column(mine, "loss"), column(theirs, "loss"))
        found[tokens] = row
    return found


def report(chosen: argparse.Namespace) -> str:
    """Write the largest difference with what it was made of, finished or not; return all for the terminal."""
    found = judge(chosen)
    there = [row["difference"]["mean"] for row in found.values() if row["difference"] is not None]
    if chosen.output:
        is_complete = len(there) == len(found)
        detail = {
            "recipe": RECIPE,
            "config": CONFIG,
            "rows": ROWS[chosen.size],
            "peer_rate": chosen.rate,
            "intervals": INTERVALS,
            "by_tokens": found,
        }
        write_measurement(
            chosen.output / "loss-at-equal-tokens.json",
            round(max(there), 4) if is_complete else None,
            "nats above the peer, at most",
            0.0,
            detail,
            is_complete=is_complete,
        )
    return "\n".join(f"{tokens:,} tokens: {text_of(row['difference'])}" for tokens, row in found.items())


def text_of(found: dict[str, Any] | None) -> str:
    return (
        "not known"
        if found is None
        else "{mean:+.4f} nats, {interval[0]:+.4f} to {interval[1]:+.4f}".format(**found)
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--rate", type=float, default=1e-3, help="of the peer: the best of time_to_loss.py")


if __name__ == "__main__":
    compare(__doc__, add_options, wanted, report)
