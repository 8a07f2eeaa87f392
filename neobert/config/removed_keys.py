"""Removed keys of earlier versions, and former defaults of keys that stored configs lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from neobert.schema_fields import Effect

REMOVED: Mapping[str, Effect] = {
    "trainer.ema_decay": "model",
    "datacollator.mlm_probability_final": "data",
    "datacollator.mlm_probability_over": "data",
}
"""Removed keys, each with the effect of a value. Averaged weights differ from the trained weights."""

WAYS_OUT: Mapping[str, str] = {
    "trainer.ema_decay": "resume with version 0.2.0 and trainer.ema_decay: null until it saves a checkpoint, "
    "which has the trained weights",
    "datacollator.mlm_probability_final": "resume with version 0.2.0",
}
"""Hints for a checkpoint of a run that set the key. Other removed keys had no effect by themselves."""

LEGACY_DEFAULTS: Mapping[str, Any] = {
    "tokenizer.lowercase": True,
    "tokenizer.strip_accents": True,
}
"""Behaviour of earlier versions by key; a key that is missing here had its present default."""


def without_removed(config: Mapping[str, Any], *, keep_set: bool) -> dict[str, Any]:
    """Return a canonical config without removed keys.

    With `keep_set`, a removed key is kept if it has a value and a hint in `WAYS_OUT`.
    """

    def is_kept(key: str, value: Any) -> bool:
        return key not in REMOVED or (keep_set and key in WAYS_OUT and value is not None)

    return {
        section: {name: each for name, each in values.items() if is_kept(f"{section}.{name}", each)}
        if isinstance(values, dict)
        else values
        for section, values in config.items()
    }


def removal_hint(keys: Iterable[str]) -> str:
    """Return the hint for a checkpoint whose config sets one of these keys; empty if none was removed."""
    return next((WAYS_OUT[key] for key in keys if key in WAYS_OUT), "")
