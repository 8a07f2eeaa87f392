"""Attention-direction probe: an encoder's tokens must attend to later ones, a decoder's must not."""

from __future__ import annotations

from collections.abc import Iterable

from neobert.probes.numerics.leak_batch import LeakBatch
from neobert.probes.numerics.paths import Path

SHORTEST, LONGEST = 16, 300
"""In longer documents the influence of one token on another may be lost in rounding."""


def direction_declared(path: Path) -> str:
    """Return the direction that the model declares: transformers' `is_causal` if it has one."""
    return "causal" if getattr(path.model.config, "is_causal", False) else "bidirectional"


def short_documents(batch: LeakBatch, victims: Iterable[int]) -> list[int]:
    """Return the segments that are short enough for one token's influence on another to survive rounding."""
    return [number for number in victims if SHORTEST <= batch.lengths[number] <= LONGEST]


def measure_direction(path: Path, batch: LeakBatch, victims: Iterable[int]) -> dict[str, int]:
    """Change the second half of documents and compare the first token, then the other way round."""
    before = path.hidden(batch)
    chosen = short_documents(batch, victims)
    early, late = 0, 0
    for number in chosen:
        places = batch.places[number]
        half = slice(len(places) // 2, None)
        after = path.hidden(batch.with_other_tokens(number, half))
        early += bool((after[places[0]] != before[places[0]]).any())
        after = path.hidden(batch.with_other_tokens(number, slice(0, len(places) // 2)))
        late += bool((after[places[-1]] != before[places[-1]]).any())
    return {"documents": len(chosen), "early_moved": early, "late_moved": late}
