"""Hub dataset names, as alternatives to local paths. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_hub_name(place: str) -> bool:
    """Return whether the text has the form OWNER/NAME and no local path of that name exists."""
    return _NAME.fullmatch(place) is not None and not Path(place).exists()
