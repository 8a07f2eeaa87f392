"""Sliding windows of a model's blocks, from its settings. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable

from neobert.families.attention import Window
from neobert.families.hf.settings import Settings

FULL, SLIDING = "full_attention", "sliding_attention"


def sliding_layers(settings: Settings, layers: int, default: Iterable[int]) -> tuple[int, ...]:
    """Return the numbers of the blocks with a window: as in `layer_types`, else `default`.

    Raises `ProjectError` unless `layer_types` has a known type for each block.
    """
    types = settings.values.get("layer_types")
    if types is None:
        return tuple(default)
    if (
        not isinstance(types, list)
        or len(types) != layers
        or any(one not in (FULL, SLIDING) for one in types)
    ):
        raise settings.invalid_value_error(
            "layer_types", f"a list of {layers} values, each {FULL} or {SLIDING}"
        )
    return tuple(number for number, one in enumerate(types) if one == SLIDING)


def causal_window(settings: Settings, layers: Iterable[int], default: int | None) -> Window | None:
    """Return the window of these blocks by transformers' `sliding_window`, or None if there is none."""
    size, blocks = settings.size_or_none("sliding_window", default), tuple(layers)
    # transformers counts the token itself.
    return None if size is None or not blocks else Window(blocks, size - 1)
