"""Direction: an encoder's early tokens must hear of late ones; a decoder's must not."""

from __future__ import annotations

from collections.abc import Iterable

from neobert.probes.numerics.leak_batch import Specimen
from neobert.probes.numerics.paths import Path

SHORTEST, LONGEST = 16, 300
"""In longer documents one token's share in another may round away, which would say nothing of direction."""


def direction_declared(path: Path) -> str:
    """Return what the model says of itself: transformers' `is_causal` where it has one."""
    return "causal" if getattr(path.model.config, "is_causal", False) else "bidirectional"


def audible(specimen: Specimen, victims: Iterable[int]) -> list[int]:
    """Return those of the segments in which one token's share in another does not round away."""
    return [number for number in victims if SHORTEST <= specimen.lengths[number] <= LONGEST]


def measure_direction(path: Path, specimen: Specimen, victims: Iterable[int]) -> dict[str, int]:
    """Change the late half of documents and look at the first token; change the first, look at the last."""
    before = path.hidden(specimen)
    chosen = audible(specimen, victims)
    early, late = 0, 0
    for number in chosen:
        places = specimen.places[number]
        half = slice(len(places) // 2, None)
        after = path.hidden(specimen.with_other_tokens(number, half))
        early += bool((after[places[0]] != before[places[0]]).any())
        after = path.hidden(specimen.with_other_tokens(number, slice(0, len(places) // 2)))
        late += bool((after[places[-1]] != before[places[-1]]).any())
    return {"documents": len(chosen), "early_moved": early, "late_moved": late}
