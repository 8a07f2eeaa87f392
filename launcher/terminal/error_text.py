"""Errors as text for a terminal."""

from __future__ import annotations

import sys

from launcher.terminal import console
from neobert.errors import ProjectError
from neobert.printable import printable


def describe(error: ProjectError) -> str:
    """Describe an error for standard error, in its colours."""
    return f"{console.paint('error', 'red', 'bold', on=sys.stderr)}: {plain_description(error)}"


def plain_description(error: ProjectError) -> str:
    """Place, sentence, code, and the way out on a line of its own."""
    place = f"{error.place}: " if error.place else ""
    hint = f"\n  = hint: {printable(error.hint)}" if error.hint else ""
    return printable(f"{place}{error.message} [{error.code}]") + hint
