"""Pairs of the first optimizer steps of a run, and their texts that occur twice in a step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.text_digests import text_digests


def pair_counts(microbatches: Sequence[Microbatch], per_step: int) -> dict[str, float]:
    """Return pairs per step, and the share of documents with a text of the query's own pair.

    Args:
        microbatches: the first ones of the run, of all ranks in their global order.
        per_step: microbatches of a step, of all ranks; fewer are as many steps of one.
    """
    steps, left = list[list[Microbatch]](), iter(microbatches)
    while step := list(islice(left, min(per_step, len(microbatches)))):
        steps.append(step)
    sizes, shares = [], []
    for step in steps:
        texts = [_of_pairs(batch) for batch in step]
        queries, answers = (torch.cat(each) for each in zip(*texts, strict=True))
        sizes.append(len(queries))
        if len(queries) > 1:
            same = (
                (queries[:, None] == queries) | (answers[:, None] == answers) | (queries[:, None] == answers)
            )
            shares.append(float(same.fill_diagonal_(False).float().mean()))
    scale = per_step / min(per_step, len(microbatches)) if microbatches else 1
    return {
        "per_step": scale * sum(sizes) / max(1, len(sizes)),
        "false_share": sum(shares) / max(1, len(shares)),
    }


def _of_pairs(batch: Microbatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the digests of the queries and of the documents that answer them, int64 [pairs] each."""
    digests, groups = text_digests(batch), batch.groups
    is_first = (groups >= 0) & (groups != torch.cat([groups.new_tensor([-1]), groups[:-1]]))
    queries = is_first.nonzero().squeeze(1)
    return digests[queries], digests[queries + 1]
