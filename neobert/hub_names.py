"""Names of data sets on the Hub, given where a local path may be given too. Light: no torch."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_hub_name(place: str) -> bool:
    """Return whether a place has the form OWNER/NAME and does not exist locally."""
    return _NAME.fullmatch(place) is not None and not Path(place).exists()
