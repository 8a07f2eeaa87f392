"""A finding as text: its place, the sentence, the source line, the hint."""

from __future__ import annotations

import linecache
from collections.abc import Iterator

from launcher.terminal import console
from launcher.terminal.console import paint
from launcher.terminal.fold import fold
from neobert.config import COMMAND_LINE
from neobert.printable import printable
from validators.finding import Finding, Severity

MOST_SHOWN = 120


COLOUR = {Severity.FAIL: "red", Severity.WARN: "yellow"}


def finding_text(finding: Finding) -> str:
    """One finding over a few lines, with the source line and a caret where the file is at hand."""
    lines = [_head(finding), *_excerpt(finding), *_key(finding), *_hint(finding)]
    return fold("\n".join(lines), console.width())


def _head(finding: Finding) -> str:
    place = ":".join(str(part) for part in (finding.file, finding.line, finding.column) if part)
    weight = paint(str(finding.severity), COLOUR[finding.severity], "bold")
    waived = " (waived)" if finding.waived else ""
    label = f"{finding.code} {finding.name}".strip()
    sentence = printable(f"{label}: {finding.message}")
    return f"{paint(printable(place), 'bold')}: {weight}{waived} {sentence}".removeprefix(": ")


def _excerpt(finding: Finding) -> Iterator[str]:
    if not finding.line or finding.file == COMMAND_LINE:
        return
    source = printable(linecache.getline(finding.file, finding.line).rstrip("\r\n"), keep="\t")
    if not source.strip():
        return
    number = str(finding.line)
    margin = f"  {number} | "
    room = min(MOST_SHOWN, (console.width() or len(margin) + MOST_SHOWN) - len(margin))
    yield f"{margin}{source[:room]}"
    if 0 < finding.column <= room:
        indent = "".join("\t" if char == "\t" else " " for char in source[: finding.column - 1])
        yield f"  {' ' * len(number)} | {indent}{paint('^', COLOUR[finding.severity])}"


def _key(finding: Finding) -> Iterator[str]:
    """The whole key, which an excerpt of one line leaves without its section."""
    if "." in finding.path and finding.path not in finding.message + finding.hint:
        yield printable(f"  = key: {finding.path}")


def _hint(finding: Finding) -> Iterator[str]:
    if finding.hint:
        yield printable(f"  = hint: {finding.hint}")
