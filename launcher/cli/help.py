"""Groups of commands: their help, for terminals of any width, and the conversion of their arguments."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from launcher.cli.conversion import convert_plainly

LONGEST_LINE = 200


class CommandGroup(TyperGroup):
    """A command group whose help wraps the descriptions of commands instead of truncating them."""

    def get_command(self, ctx: Any, name: str) -> Any:
        """Return a command whose arguments are converted without pydantic."""
        command = super().get_command(ctx, name)
        if command is not None:
            convert_plainly(command, ctx)
        return command

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options of the group itself, converted without pydantic too."""
        convert_plainly(self, ctx)
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with their complete first sentence."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, command.get_short_help_str(LONGEST_LINE)) for name, command in commands if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
