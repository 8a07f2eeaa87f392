"""Values, numbers and results as text. Powers of two are MiB and GiB, never MB or GB."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from neobert.config import Origin

MINUTE_S = 60.0
DAY_S = 86400.0
LONGEST_S = 1e15
"""Longer times (over 32 million years) come from damaged files or overflows, and are shown as unknown."""
UNKNOWN = "-"
SCHEMA_VERSION = 1


def show_value(value: Any) -> str:
    """Format a config value on one line: text unquoted unless it is empty, anything else as JSON."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def origin_text(origin: Origin) -> str:
    """Format the origin of a value: the default, the run directory, the argument, or file and line."""
    if origin.kind == "default":
        return "default"
    if origin.kind == "run":
        return "run directory: profile or default as it was when the run began"
    if origin.kind == "override":
        return f"command line, argument {origin.line}" if origin.line else "command line"
    return f"{origin.file}:{origin.line}" if origin.line else origin.file


def show_duration(seconds: float | None) -> str:
    """Format a duration as 0.5 s, 45 s, 12 min, 3 h 20 min, 4.1 days; None and over `LONGEST_S` as `-`."""
    if seconds is None or seconds > LONGEST_S:
        return UNKNOWN
    if seconds < MINUTE_S:
        return f"{seconds:.{0 if seconds >= 10 else 1}f}".removesuffix(".0") + " s"
    minutes = round(seconds / MINUTE_S)
    if minutes < 60:
        return f"{minutes} min"
    if seconds < 2 * DAY_S:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{seconds / DAY_S:.1f} days"


def show_age(seconds: float | None) -> str:
    """Format the time since an event in one unit, rounded down: 45 s, 12 min, 3 h, 4 days; None as `-`."""
    if seconds is None:
        return UNKNOWN
    for size_s, unit in ((DAY_S, "days"), (3600.0, "h"), (MINUTE_S, "min")):
        if seconds >= 2 * size_s:
            return f"{seconds // size_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def show_count(number: float | None) -> str:
    """Format a count as 950, 12.3k, 4.56M, 7.89B; None as `-`."""
    if number is None:
        return UNKNOWN
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(float(f"{number / size:.3g}")) >= 1:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def show_mib(mib: float | None) -> str:
    """Format an amount of memory as 512 MiB, 12.5 GiB; None as `-`."""
    if mib is None:
        return UNKNOWN
    return f"{mib:.0f} MiB" if round(mib) < 1024 else f"{mib / 1024:.1f} GiB"


def show_number(number: float | None, digits: int = 4) -> str:
    """Format a number with at most `digits` significant digits; None as `-`."""
    return UNKNOWN if number is None else f"{number:.{digits}g}"


def add_schema_version(content: Mapping[str, Any]) -> dict[str, Any]:
    """Add the schema version, which increases if a field is removed or changes meaning, to a copy."""
    return {"schema_version": SCHEMA_VERSION, **content}


def result_json(content: Mapping[str, Any]) -> str:
    """Return the result of a command as JSON, with the version of the output schema."""
    return to_json(add_schema_version(content))


def to_json(content: Any) -> str:
    """Return indented JSON in ASCII, which every locale can print and no terminal or CI log interprets.

    JSON has no NaN and no infinity: both are written as null.
    """
    try:
        text = json.dumps(content, indent=2, allow_nan=False)
    except ValueError:
        text = json.dumps(replace_nonfinite(content), indent=2)
    return text.replace("##[", "#\\u0023[")


def replace_nonfinite(content: Any) -> Any:
    """Replace each number that is not finite with None, because JSON has no such numbers."""
    if isinstance(content, Mapping):
        return {name: replace_nonfinite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [replace_nonfinite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
