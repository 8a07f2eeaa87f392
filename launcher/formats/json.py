"""One JSON object, for machines."""

from __future__ import annotations

import json

from launcher.report import Report


def render(report: Report) -> str:
    """The published shape, indented so that a person can read it in a log."""
    return json.dumps(report.as_json(), indent=2, ensure_ascii=False)
