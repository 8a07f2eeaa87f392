"""HTML of values and tables. Every value from a run directory passes through `html_text`."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from neobert.printable import printable
from neobert.runfiles.json_values import is_number

NUM_COLORS = 8
"""Number of colors of the lines in a chart, as page.css defines them."""
STATUSES = ("pass", "warn", "fail", "unknown", "skip")


def html_text(value: object) -> str:
    """Return a value as HTML text: escaped, without control characters."""
    return html.escape(printable(str(value)))


def html_code(value: object) -> str:
    """Return a value as HTML in a <code> element."""
    return f"<code>{html_text(value)}</code>"


def html_muted(value: object) -> str:
    """Return a value as HTML in a muted color."""
    return f'<span class="muted">{html_text(value)}</span>'


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]], narrow: Sequence[str] = ()) -> str:
    """Return an HTML table of heads and cells that are HTML already; empty if there are no rows.

    On a narrow screen each cell shows its head, from `narrow` if given. These heads must contain no tags.
    """
    names = [f' data-head="{head}"' if head else "" for head in narrow or heads]
    lines = [
        "<tr>" + "".join(f"<td{name}>{cell}</td>" for name, cell in zip(names, row, strict=True)) + "</tr>"
        for row in rows
    ]
    if not lines:
        return ""
    head = "".join(f'<th scope="col">{head}</th>' for head in heads)
    named = f"<thead><tr>{head}</tr></thead>" if any(heads) else ""
    body = "\n".join(lines)
    inner = f"{named}<tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="stack">{inner}</table></div>'


def html_details(summary: str, content: str) -> str:
    """Return HTML content in a <details> element with an HTML summary."""
    return f"<details><summary>{summary}</summary>{content}</details>"


def html_status(value: object) -> str:
    """Return the status of a check as HTML in its color; another value has the color of `unknown`."""
    known = value if value in STATUSES else "unknown"
    return f'<b class="{known}">{html_text(value)}</b>'


def html_time(stamp: object) -> str:
    """Return an ISO 8601 time in UTC as HTML, without `T` and the offset; other values as text."""
    shown = str(stamp or "").replace("T", " ").removesuffix("+00:00")
    return f'<span class="time">{html_text(shown)}</span>'


def finite_number(value: object) -> float | None:
    """Return a finite number as a float, or None for any other value."""
    return float(value) if is_number(value) else None


def mapping_or_empty(value: object) -> Mapping[str, Any]:
    """Return a dictionary unchanged, or an empty dictionary for any other value."""
    return value if isinstance(value, dict) else {}
