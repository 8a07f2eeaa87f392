"""Keys by which the configs of two runs are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neobert.config.keys import without_effects

OUTPUT_DIR = "trainer.output_dir"


def comparable_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config without keys that always differ: the run directory and how the run was started."""
    kept = without_effects(dict(config), ("start",))
    kept.pop(OUTPUT_DIR, None)
    return kept
