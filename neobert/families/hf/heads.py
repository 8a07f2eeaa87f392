"""Heads of the architectures: from their descriptions, and added by tasks. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from neobert.families.hf.architecture import HeadPath
from neobert.families.hf.architectures.table import ARCHITECTURES
from neobert.tasks.specs import SPECS


def heads_by_auto_class(name: str) -> Mapping[str, HeadPath]:
    """Return the heads of an architecture by the auto class of the model."""
    brought = {spec.auto_class: spec.heads[name] for spec in SPECS.values() if name in spec.heads}
    return {**brought, **ARCHITECTURES[name].heads}


def takes_texts(auto_class: str) -> bool:
    """Return whether a head takes one vector per text, and not per token."""
    return any(spec.labels_texts for spec in SPECS.values() if spec.auto_class == auto_class)
