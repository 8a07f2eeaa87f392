"""Values of keys for configs that were stored by versions without these keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LEGACY_DEFAULTS: Mapping[str, Any] = {
    "tokenizer.lowercase": True,
    "tokenizer.strip_accents": True,
}
"""Behaviour of earlier versions by key; a key that is missing here had its present default."""
