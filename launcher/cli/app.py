"""Command line of `neobert-launch`. Commands are implemented in `launcher/commands` and imported on use."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from copy import copy
from importlib import import_module
from typing import Annotated, Any, Literal, NoReturn

import typer

from launcher.cli.arguments import expand_json_option
from launcher.cli.groups import PROGRAM, app
from launcher.process.termination import TerminatedError, raise_on_signals
from launcher.terminal import console
from neobert import __version__
from neobert.errors import EXIT_OK

DECLARATIONS = (
    ".config_commands", ".run_commands", ".submit_command", ".use_commands", ".evaluate_commands",
    ".chat_commands",
)  # fmt: skip
"""Modules that add their commands to the app, in the order of the help text."""

COMPLETES = "_NEOBERT_LAUNCH_COMPLETE"
"""Environment variable that requests shell completions; typer prints them and exits."""


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
]


def _set_colour_variables(color: str) -> str:
    """Set NO_COLOR or FORCE_COLOR for this process and its children, unless `color` is auto; return it."""
    if color != "auto":
        os.environ.pop("NO_COLOR", None)
        os.environ["FORCE_COLOR" if color == "always" else "NO_COLOR"] = "1"
    return color


Color = Annotated[
    Literal["auto", "always", "never"],
    typer.Option(
        "--color",
        metavar="WHEN",
        callback=_set_colour_variables,
        help="Color the output: auto (on a terminal), always or never.",
        show_default=False,
    ),
]


@app.callback()
def _declare_global_options(version: Version = False, color: Color = "auto") -> None:
    pass


def app_with_all_commands() -> typer.Typer:
    """Import the declarations of all commands and return the app."""
    for name in DECLARATIONS:
        import_module(name, __package__)
    return app


def make_parser(arguments: Sequence[str]) -> Any:
    """Return a parser for the command or group that the first argument names, or for the whole app.

    Declarations of other commands are not imported, because typer inspects every option, which for all
    commands takes as long as parsing a run file.
    """
    for name in DECLARATIONS:
        import_module(name, __package__)
        if chosen := _app_with_commands(arguments[:1]):
            return typer.main.get_command(chosen)
    return typer.main.get_command(app)


def _app_with_commands(names: Sequence[str | None]) -> typer.Typer | None:
    """Return the app with only these commands and groups, or None if none of them is defined yet."""
    chosen = copy(app)
    chosen.registered_commands = [info for info in app.registered_commands if info.name in names]
    chosen.registered_groups = [
        info
        for info in app.registered_groups
        if info.typer_instance is not None and info.typer_instance.info.name in names
    ]
    return chosen if chosen.registered_commands or chosen.registered_groups else None


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; errors are reported without a traceback.

    With NEOBERT_TRACEBACK=1, an unexpected exception is raised.
    """
    # pydantic's search for plugins reads the metadata of all packages, a tenth of the run time of `lint`.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    arguments = expand_json_option(arguments)
    try:
        command = make_parser(arguments)
        with command.make_context(PROGRAM, list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except BrokenPipeError:  # the reader of the help text closed its pipe
        console.redirect_to_null(sys.stdout)
    except (Exception, KeyboardInterrupt, TerminatedError) as error:
        from launcher.cli.errors import report_exception, requested_format

        return report_exception(error, requested_format(arguments))
    return EXIT_OK


def main() -> NoReturn:
    """Run `neobert-launch` with the arguments of the process, and exit with its exit code."""
    if os.environ.get(COMPLETES):
        app_with_all_commands()(prog_name=PROGRAM)
    raise_on_signals()
    console.open_closed_streams()
    console.escape_unencodable_text()
    sys.exit(run(sys.argv[1:]))
