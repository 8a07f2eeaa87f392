"""One JSON object, for machines."""

from __future__ import annotations

import json
from typing import Any

from launcher.report.report import Report


def render(report: Report) -> str:
    """The published shape, indented so that a person can read it in a log."""
    return to_json(report.as_json())


def to_json(content: Any) -> str:
    """Write any result as JSON in ASCII: every locale can print it, and no terminal or CI log acts on it."""
    return json.dumps(content, indent=2).replace("##[", "#\\u0023[")
