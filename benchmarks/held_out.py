"""Loss of a masked language model on held-out passages with fixed masks.

Independent of trainer and model class.

Each passage is a row of its own. In each of three passes another 15 % of its tokens, markers excepted, are
replaced by [MASK]; the same ones for every model. The loss is the mean over all masked tokens, in fp32 from
logits that the model computes in bf16 on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

MASK_ID, PAD_ID, NUM_SPECIAL = 103, 0, 1000
"""Of bert-base-uncased; its ids below 1,000 are markers and unused."""
SHARE, NUM_PASSES, ROWS, WIDTH, SEED = 0.15, 3, 64, 512, 20_260
HELD_OUT, TEST, WIKITEXT = "held_out", "test", "wikitext"
"""Passages to choose recipes by; passages that no choice has seen; another corpus, its test split."""
RowsOf = Callable[[Path, str], NDArray[np.int64]]
LogitsOf = Callable[[Tensor, Tensor], Tensor]
"""From ids [B, S] and a mask [B, S], true for tokens, to logits [B, S, V]."""


def padded_rows(path: Path, side: str) -> NDArray[np.int64]:
    """Return the passages of a side as padded rows [N, S]."""
    with np.load(path) as arrays:
        ids, offsets = arrays[side].astype(np.int64), arrays[f"{side}_offsets"]
    rows = np.full((len(offsets) - 1, WIDTH), PAD_ID)
    for row, (first, last) in enumerate(pairwise(offsets)):
        rows[row, : last - first] = ids[first:last]
    return rows


def full_rows(path: Path, side: str) -> NDArray[np.int64]:
    """Return rows [N, S] without padding, cut from the concatenated passages of a side."""
    with np.load(path) as arrays:
        ids = arrays[side].astype(np.int64)
    return ids[: len(ids) // WIDTH * WIDTH].reshape(-1, WIDTH)


def batches(rows: NDArray[np.int64]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield inputs, token mask and chosen places [B, S] with the labels in the inputs' place."""
    draw = np.random.default_rng(SEED)
    for _ in range(NUM_PASSES):
        chosen = (draw.random(rows.shape) < SHARE) & (rows >= NUM_SPECIAL)
        for first in range(0, len(rows), ROWS):
            part = slice(first, first + ROWS)
            yield (
                torch.from_numpy(rows[part]),
                torch.from_numpy(rows[part] != PAD_ID),
                torch.from_numpy(chosen[part]),
            )


@torch.no_grad()
def held_out(
    logits_of: LogitsOf, path: Path, device: str, rows_of: RowsOf = padded_rows, side: str = HELD_OUT
) -> dict[str, float]:
    """Return mean loss in nats, accuracy, and the number of masked tokens of a side of the passages."""
    loss = hits = count = 0.0
    for labels, is_token, chosen in batches(rows_of(path, side)):
        labels, is_token, chosen = labels.to(device), is_token.to(device), chosen.to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = logits_of(torch.where(chosen, MASK_ID, labels), is_token)
        picked, wanted = logits[chosen].float(), labels[chosen]
        loss += float(F.cross_entropy(picked, wanted, reduction="sum"))
        hits += float((picked.argmax(-1) == wanted).sum())
        count += len(wanted)
    return {"loss": loss / count, "accuracy": hits / count, "masked": count}


def evaluate(logits_of: LogitsOf, path: Path, device: str) -> dict[str, float]:
    """Return loss and accuracy of the passages to choose by, and the losses of those that no choice sees."""
    with np.load(path) as arrays:
        others = [side for side in (TEST, WIKITEXT) if side in arrays]
    losses = {f"{side}_loss": held_out(logits_of, path, device, side=side)["loss"] for side in others}
    return {**held_out(logits_of, path, device), **losses}
