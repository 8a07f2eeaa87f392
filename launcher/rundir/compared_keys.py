"""Keys by which the configs of two runs are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neobert.config.keys import without_effects

OUTPUT_DIR = "trainer.output_dir"


def compared_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the run directory and how the run was started, which no two runs have in common."""
    kept = without_effects(dict(config), ("start",))
    kept.pop(OUTPUT_DIR, None)
    return kept
