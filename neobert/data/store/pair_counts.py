"""Pairs in the first optimizer steps of a run, and the share that repeats a text of the same step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.text_digests import text_digests, without_scored_examples

ROWS = 1024
"""Chunk of pairs that is compared with all pairs at once."""


def pair_counts(microbatches: Sequence[Microbatch], per_step: int) -> dict[str, float]:
    """Return the number of pairs per step, and the share of other pairs that repeat a text of a pair.

    Scored examples are not compared.

    Args:
        microbatches: the first microbatches of the run, of all ranks in their global order. An incomplete
            last step is not counted, unless it is the only one.
        per_step: microbatches of a step, of all ranks; if these are fewer, they count as a part of a step.
    """
    size = max(1, min(per_step, len(microbatches)))
    sizes, shares = [], []
    for start in range(0, len(microbatches) - size + 1, size):
        texts = [_pair_digests(batch) for batch in microbatches[start : start + size]]
        queries, answers = (torch.cat(each) for each in zip(*texts, strict=True))
        sizes.append(sum(batch.num_targets for batch in microbatches[start : start + size]))
        if len(queries) > 1:
            shares.append(_repeated_share(queries, answers))
    return {
        "per_step": per_step / size * sum(sizes) / max(1, len(sizes)),
        "false_share": sum(shares) / max(1, len(shares)),
    }


def _repeated_share(queries: torch.Tensor, answers: torch.Tensor) -> float:
    """Return the share of combinations of two pairs in which the second repeats a text of the first."""
    same = 0
    for rows in torch.arange(len(queries)).split(ROWS):
        query, answer = queries[rows, None], answers[rows, None]
        same += int(((query == queries) | (answer == answers) | (query == answers)).sum())
    return (same - len(queries)) / len(queries) ** 2  # each pair has the texts of itself


def _pair_digests(batch: Microbatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the digests of queries without scores and of the documents that answer them, int64 [pairs]."""
    digests = text_digests(batch)
    queries = without_scored_examples(batch).starts_example.nonzero().squeeze(1)
    return digests[queries], digests[queries + 1]
