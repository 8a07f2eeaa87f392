"""Values of a config as a person writes and reads them."""

from __future__ import annotations

import json
from typing import Any

from neobert.config import Origin


def show_value(value: Any) -> str:
    """A value as YAML writes it on one line."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def origin_text(origin: Origin) -> str:
    """Format the origin of a value."""
    if origin.kind == "default":
        return "default"
    if origin.kind == "override":
        return f"command line, argument {origin.line}"
    return f"{origin.file}:{origin.line}"
