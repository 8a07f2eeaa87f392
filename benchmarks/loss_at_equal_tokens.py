"""Held-out loss of this trainer and of `transformers.Trainer` at equal tokens, three seeds each.

    python benchmarks/loss_at_equal_tokens.py WORK RESULTS [--seconds 560] [--output DIR]

WORK holds what `passages.py` wrote; RESULTS keeps finished trials (`trials.py`) and may be that of
`time_to_loss.py`. Each number of tokens is a run of its own whose schedule ends there. Rows of this trainer
hold whole passages and some filler: it takes a few more steps, and never more tokens than the peer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from measurement import write_measurement
from trials import (
    CONFIG,
    RECIPE,
    ROW_LENGTH,
    ROWS,
    SEEDS,
    Trial,
    lines_of,
    ours,
    parse,
    parser_of,
    peer,
    result,
    run_missing,
    summary,
)

TOKENS = (50_000_000, 100_000_000)
FILL = 0.9935
"""Tokens of this text over places in packed rows of 512, at most (docs/learning.md)."""


def peer_name(tokens: int, seed: int) -> str:
    return f"peer-{tokens // 10**6}M-seed-{seed}"


def own_name(tokens: int) -> str:
    return f"ours-{tokens // 10**6}M"


def wanted(chosen: argparse.Namespace) -> Iterator[Trial]:
    per_step = ROWS * ROW_LENGTH
    for tokens in chosen.tokens:
        steps = int(tokens / (per_step * FILL))
        recipes = [{"steps": steps, "seed": seed} for seed in SEEDS]
        yield ours(chosen.work, chosen.results, own_name(tokens), recipes, size=chosen.size)
        for seed in SEEDS:
            yield peer(
                chosen.work,
                peer_name(tokens, seed),
                steps=-(-tokens // per_step),
                rate=chosen.rate,
                seed=seed,
                size=chosen.size,
            )


def judge(chosen: argparse.Namespace) -> tuple[float | None, dict[str, Any]]:
    """Return the largest difference over all numbers of tokens, None before all are there, and the runs."""
    found: dict[str, Any] = {"recipe": RECIPE, "config": CONFIG, "rows": ROWS, "peer_rate": chosen.rate}
    differences = []
    for tokens in chosen.tokens:
        runs = lines_of(chosen.results, own_name(tokens))
        mine = summary(runs) if runs else None
        theirs = summary(result(chosen.results, peer_name(tokens, seed)) for seed in SEEDS)
        found[str(tokens)] = {"ours": mine, "peer": theirs}
        if mine is None or theirs is None:
            return None, found
        differences.append(mine["loss"] - theirs["loss"])
    return max(differences), found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--rate", type=float, default=1e-3, help="of the peer: the best of time_to_loss.py")
    chosen = parse(parser)
    run_missing(lambda: wanted(chosen), chosen)
    difference, found = judge(chosen)
    print("difference: " + ("not known" if difference is None else f"{difference:+.4f} nats at most"))
    if chosen.output and difference is not None:
        path = chosen.output / "loss-at-equal-tokens.json"
        write_measurement(path, round(difference, 4), "nats above the peer, at most", 0.0, found)


if __name__ == "__main__":
    main()
