"""Rotary positions whose frequencies depend on the longest document of a row. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from neobert.families.family import Unsupported
from neobert.families.hf.settings import POSITIONS, Settings

BY_LENGTH = ("dynamic", "longrope", "su")
KEY = "dataset.max_seq_length"


def unsupported_rotation(settings: Settings, longest_row: int) -> Iterator[Unsupported]:
    """Yield the row length if a long document would change the positions of the others in its row."""
    for scaling in _scalings(settings):
        kind = scaling.get("rope_type", scaling.get("type"))
        limit = _original_length(settings, scaling)
        if kind in BY_LENGTH and longest_row > limit:
            problem = f"rotary positions of type {kind} change in a whole row with a document of more than "
            problem += f"{limit:,} tokens, but rows have {longest_row:,}"
            yield Unsupported(KEY, problem, f"set {KEY} to {limit}")


def _scalings(settings: Settings) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of rotary positions: one, or one for each type of block."""
    given = settings.values.get("rope_parameters") or settings.values.get("rope_scaling")
    if isinstance(given, dict):
        yield from [each for each in given.values() if isinstance(each, dict)] or [given]


def _original_length(settings: Settings, scaling: Mapping[str, Any]) -> int:
    name = "original_max_position_embeddings"
    return settings._replace(values={**settings.values, **scaling}).size(name, settings.size(POSITIONS, 2048))
