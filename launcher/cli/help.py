"""The help of the command line, for terminals of any width."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

LONGEST_LINE = 200


class WholeLines(TyperGroup):
    """A group that breaks the lines of its commands where the terminal ends, and cuts none of them short."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with their whole first sentence."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, command.get_short_help_str(LONGEST_LINE)) for name, command in found if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
