"""Files of local text as rows: formats, documents, and files that are not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from neobert.plurals import counted

Row = tuple[str, str, str]
MAX_KINDS = 5
REASON = "files are selected by suffix, split and column; see docs/own-data.md"


def files_rows(texts: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Yield a row per local text, from `TextFacts` as JSON values."""
    for text in texts:
        yield "text", files_text(text), REASON


def files_text(text: Mapping[str, Any]) -> str:
    """Return the files of a text by format, its documents, and the files that are not read, in one line."""
    if text["message"] and not text["formats"]:
        return f"{text['source']}: {text['message']}"
    formats = ", ".join(f"{count:,} x {suffix}" for suffix, count in text["formats"].items())
    parts = [f"{text['source']}: {formats or 'a saved dataset'}"]
    if text["num_eval_files"]:
        parts.append(f"{counted(text['num_eval_files'], 'file')} for evaluation")
    if text["documents"] is not None:
        parts.append(counted(text["documents"], "document"))
    left = "" if not text["left_out"] else f"; not read: {left_out_text(text['left_out'])}"
    return ", ".join(parts) + left


def left_out_text(left_out: Sequence[Mapping[str, Any]]) -> str:
    """Return the most frequent kinds of files that are not read, with the reason of each."""
    shown = [
        f"{each['num_files']:,} x {each['kind']}" + f" ({each['reason']})" * bool(each["reason"])
        for each in left_out[:MAX_KINDS]
    ]
    more = sum(each["num_files"] for each in left_out[MAX_KINDS:])
    return ", ".join([*shown, *([f"{more:,} more"] if more else [])])
