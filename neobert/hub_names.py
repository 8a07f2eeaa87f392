"""Hugging Face Hub names, which some config keys accept instead of local paths."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_hub_name(place: str) -> bool:
    """Return whether `place` has the form OWNER/NAME and does not exist as a local path."""
    return _NAME.fullmatch(place) is not None and not Path(place).exists()
