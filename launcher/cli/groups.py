"""Command groups: help that fits terminals of any width, and argument conversion without pydantic.

typer converts each value with a pydantic adapter and imports pydantic for the first one, which takes longer
than all of `--help`. Text, paths and choices need no adapter; typer converts anything else, and explains
what is wrong with a value.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

import typer
from typer.core import TyperGroup

from launcher.cli.arguments import EMPTY_PATH, UsageError

PROGRAM = "neobert-launch"
CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda name: name if "." in name else name.replace("_", "-"),  # a key stays
    "max_content_width": 110,
}
LONGEST_LINE = 200
MEANT = {
    "generate": "chat, or evaluate generation",
    "inference": "predict, encode or chat",
    "embed": "encode",
    **dict.fromkeys(("finetune", "fine-tune"), "train"),
    "eval": "evaluate",
    **dict.fromkeys(("dpo", "grpo", "kto", "reward"), "TRL: preferences and RL are not trained here"),
}
"""Command to use here, by the name of the command in other libraries."""


class CommandGroup(TyperGroup):
    """A command group whose help wraps the descriptions of commands instead of truncating them."""

    def get_command(self, ctx: Any, name: str) -> Any:
        """Return the command, with arguments converted without pydantic, or None for an unknown name."""
        command = super().get_command(ctx, name)
        if command is not None:
            convert_without_pydantic(command, ctx)
            refuse_empty_paths(command, ctx)
            show_plain_argument_names(command, ctx)
            command.parse_args = partial(_parse_args, type(command).parse_args, command)  # type: ignore[method-assign]
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the named command; for a command of another library, fail and name the equivalent here."""
        if args and args[0] in MEANT and args[0] not in self.list_commands(ctx):
            ctx.fail(f"No such command '{args[0]}'; use {MEANT[args[0]]}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options of the group itself, converted without pydantic too."""
        convert_without_pydantic(self, ctx)
        refuse_empty_paths(self, ctx)
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by help panel, each with its full first sentence."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.commands[name]
            row = name, command.get_short_help_str(LONGEST_LINE)
            sections.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append(row)
        width = max(len(name) for rows in sections.values() for name, _ in rows)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])


class DefaultCommandGroup(CommandGroup):
    """A command group whose first command runs if none is named: `runs DIR` means `runs list DIR`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command, unless the arguments start with a command or a help option."""
        names = self.list_commands(ctx)
        is_named = args[:1] and args[0] in (*names, *ctx.help_option_names)
        return super().parse_args(ctx, args if is_named else [names[0], *args])


class PlainConverter:
    """Converter of one parameter, used instead of the pydantic adapter that typer builds on first use."""

    def __init__(self, annotation: Any) -> None:
        is_list = get_origin(annotation) is list
        self.item = get_args(annotation)[0] if is_list else annotation

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert a value, or each value of a list, to the annotated type. Raises typer's usage error."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        items = value if isinstance(value, list | tuple) else [value]
        if not all(map(self._is_plainly_typed, items)):
            param._runtime_param = None
            return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
        converted = [Path(item) if self.item is Path else item for item in items]
        return converted if items is value else converted[0]

    def _is_plainly_typed(self, item: Any) -> bool:
        if get_origin(self.item) is Literal:
            return item in get_args(self.item)
        return self.item in (str, Path) and isinstance(item, str)


def convert_without_pydantic(command: Any, ctx: Any) -> None:
    """Use `PlainConverter` for parameters without other validation, if this version of typer supports it."""
    for param in command.get_params(ctx):
        if hasattr(param, "_runtime_param") and not _has_other_validation(
            param.type_descriptor.parameter_info
        ):
            param._runtime_param = PlainConverter(param.type_descriptor.annotation)


def refuse_empty_paths(command: Any, ctx: Any) -> None:
    """Reject an empty path for any option or argument, in every version of typer.

    Path("") is the current folder, which an unset shell variable would select by mistake.
    """
    for param in command.get_params(ctx):
        if _is_path(param):
            param.process_value = partial(_process_path, type(param).process_value, param)


def _is_path(param: Any) -> bool:
    """Return whether a parameter takes paths, by its annotation, or by click's type before typer 0.29.

    `--from` takes a path or a name on the Hub, and TEXTS may be one text.
    """
    if not {"--from", "texts"}.isdisjoint(param.opts):
        return True
    descriptor = getattr(param, "type_descriptor", None)
    if descriptor is None:
        return param.type.name in ("path", "file", "directory")
    return Path in (descriptor.annotation, *get_args(descriptor.annotation))


def _process_path(process: Any, param: Any, ctx: Any, value: Any) -> Any:
    if "" in (value if isinstance(value, list | tuple) else [value]):
        raise typer.BadParameter(EMPTY_PATH, ctx, param)
    return process(param, ctx, value)


def _parse_args(parse: Any, command: Any, ctx: Any, args: list[str]) -> Any:
    """Parse the arguments of a command; a usage error without a context gets this command's."""
    try:
        return parse(command, ctx, args)
    except UsageError as error:
        error.ctx = error.ctx or ctx
        raise


def show_plain_argument_names(command: Any, ctx: Any) -> None:
    """Show arguments as RUN or [FILE], instead of with typer's braces and types such as list[Path]."""
    for param in command.get_params(ctx):
        if param.param_type_name == "argument" and param.metavar is not None:
            usage = param.metavar if param.required else f"[{param.metavar}]"
            usage += "..." if param.nargs != 1 else ""
            param.get_usage_pieces = partial(_usage_pieces, usage)
            param.get_help_record = partial(_help_record, type(param).get_help_record, param, param.metavar)


def _usage_pieces(usage: str, _ctx: Any) -> list[str]:
    return [usage]


def _help_record(describe: Any, param: Any, name: str, ctx: Any) -> tuple[str, str]:
    return name, describe(param, ctx)[1]


def _has_other_validation(info: Any) -> bool:
    """Return whether typer also validates the value, by a custom parser or a check of the path."""
    is_limited = any(getattr(info, name, None) for name in ("parser", "exists", "writable", "resolve_path"))
    return is_limited or not (getattr(info, "file_okay", True) and getattr(info, "dir_okay", True))


def exit_with(code: int) -> NoReturn:
    """Exit the command with this exit code, by raising `typer.Exit`."""
    raise typer.Exit(code)


def make_group(name: str, text: str, **settings: Any) -> typer.Typer:
    """Return an empty command group with this help text and typer settings."""
    return typer.Typer(
        name=name,
        help=text,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=CONTEXT,
        **{"cls": CommandGroup, "no_args_is_help": True, "add_completion": False, **settings},
    )


app = make_group(
    PROGRAM,
    "Train encoders and decoders, with preflight checks of config, machine and data.",
    epilog=f"Start with: {PROGRAM} init --text FILE; or {PROGRAM} train --profile cpu-demo",
    add_completion=True,
)
