"""Alternative spellings of run files and overrides, rewritten to the options that the parser defines.

`run.yaml`, `@ run.yaml` and `@run.yaml` become `--config run.yaml`; `--trainer.max_steps 10`,
`--trainer.max_steps=10` and `trainer.max_steps=10` become `--set trainer.max_steps=10`, and `--seed 9`
becomes `--set seed=9`. Arguments after `--` are passed to torchrun.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile
from typing import Any

import typer
from typer.core import TyperCommand

from launcher.cli.completion import key_options
from launcher.io.files import RUN_FILE_SUFFIXES

TEXT = "--text"
EXTRA = "unexpected extra argument"
EMPTY_PATH = "the path is empty; a shell variable may be unset"
KEYS_WITHOUT_SECTION = ("seed", "task", "trackers")
DOTTED_OPTION = re.compile(
    rf"--([A-Za-z_][\w-]*(?:\.[\w-]+)+|{'|'.join(KEYS_WITHOUT_SECTION)})(=.*)?", re.DOTALL
)
WEIGHTS_OF_OTHERS = ("model_name_or_path", "base_model", "model", "model_id", "pretrained_model_name_or_path")
"""Options of other trainers that correspond to --from here."""
KEY_TO_WRITE = re.compile(r"write (\w+\.\w+)(?:$|; )")
"""Matches advice to write one key whose value has the same unit."""
ASSIGNMENT = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*=", re.DOTALL)
# The parser's error class; its module depends on the version of typer.
UsageError: Any = typer.BadParameter.__base__


def is_help_page_error(error: BaseException) -> bool:
    """Return whether the error shows the help page of a group that was called without a command."""
    return isinstance(error, UsageError) and type(error).__name__ == "NoArgsIsHelpError"


class MisplacedArgumentError(ValueError):
    """Raised for `--set KEY VALUE`, which lacks the `=`."""


def split_passthrough(tokens: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments at the first `--` into this command's and torchrun's, which may be empty."""
    if "--" not in tokens:
        return list(tokens), []
    cut = list(tokens).index("--")
    return list(tokens[:cut]), list(tokens[cut + 1 :])


def expand_json_option(tokens: Sequence[str]) -> list[str]:
    """Replace `--json` by --output-format=json, except after `--`."""
    cut = list(tokens).index("--") if "--" in tokens else len(tokens)
    ours = ("--output-format=json" if token == "--json" else token for token in tokens[:cut])
    return [*ours, *tokens[cut:]]


def rewrite_tokens(tokens: Sequence[str], options_with_value: Collection[str]) -> list[str]:
    """Rewrite config files and overrides in any spelling as options, in the same order.

    Args:
        tokens: the arguments of one command.
        options_with_value: options whose next token is their value and must be left alone.

    Raises:
        MisplacedArgumentError: a bare argument looks like the value of a `--set KEY`.
    """
    return list(_iterate_options(deque(tokens), options_with_value))


def _iterate_options(tokens: deque[str], options_with_value: Collection[str]) -> Iterator[str]:
    while tokens:
        token = tokens.popleft()
        is_declared = token.partition("=")[0] in options_with_value  # as --task of `init`
        dotted = None if is_declared else DOTTED_OPTION.fullmatch(token)
        if dotted:
            yield from ("--set", dotted[1] + (dotted[2] or _pop_assigned_value(tokens)))
        elif token.startswith("@"):
            yield from ("--config", *([token[1:]] if len(token) > 1 else _pop_first(tokens)))
        elif token in options_with_value:
            value = _pop_first(tokens)
            if token == "--set":
                _require_equals_sign(value, tokens)
            yield from (token, *value)
        elif ASSIGNMENT.match(token):
            yield from ("--set", token)
        elif token.lower().endswith(RUN_FILE_SUFFIXES) and not token.startswith("-"):
            yield from ("--config", token)
        else:
            yield token


def _pop_first(tokens: deque[str]) -> list[str]:
    return [tokens.popleft()] if tokens else []


def _require_equals_sign(key: list[str], rest: deque[str]) -> None:
    """Raise MisplacedArgumentError if the value of a `--set KEY` follows as a separate argument."""
    following = rest[0] if rest else "--"
    if "=" in "".join(key) or following.startswith(("--", "@")) or ASSIGNMENT.match(following):
        return
    meant = f"--set {key[0]}={following}"
    raise MisplacedArgumentError(f"Unexpected argument '{following}'. Did you mean '{meant}'?")


def _pop_assigned_value(tokens: deque[str]) -> str:
    """Pop the next token and return it as `=VALUE`.

    Returns an empty string if the next token is an option; the override then fails to parse.
    """
    return f"={tokens.popleft()}" if tokens and not tokens[0].startswith("--") else ""


def _text_files(tokens: Sequence[str]) -> list[str]:
    """Return the files directly after --text, several if the shell expanded a pattern; no run files."""
    following = tokens[tokens.index(TEXT) + 1 :] if TEXT in tokens else []
    files = takewhile(os.path.isfile, following)
    return [file for file in files if not file.lower().endswith(RUN_FILE_SUFFIXES)]


def _explain_usage_error(error: Any, args: Sequence[str]) -> None:
    """Add suggestions to a usage error, in place.

    An unknown option is shown as typed, with the config keys that resemble it. For an extra argument, the
    suffixes of run files are listed.
    """
    from neobert.config.key_suggestions import keys_named
    from neobert.config.migrated_keys import advice_for_key

    if EXTRA in error.message:
        message = error.message.replace("(s)", "").rstrip(".")
        ending = f"{message}: a run file ends in {', '.join(RUN_FILE_SUFFIXES)}"
        error.message = EMPTY_PATH if message.endswith("()") else ending
    option = getattr(error, "option_name", "")
    typed = [name for name in (token.partition("=")[0] for token in args) if name.replace("_", "-") == option]
    error.message = error.message.replace(option, typed[0]) if typed else error.message
    if not hasattr(error, "possibilities"):  # a known option without its argument
        return
    name = option.removeprefix("--").replace("-", "_")
    if name in WEIGHTS_OF_OTHERS and any("--from" in param.opts for param in error.ctx.command.params):
        error.possibilities = ["--from"]
    elif near := [key for key in keys_named(name) if key != name]:
        error.possibilities = [f"--{key}" for key in near]
    elif written := KEY_TO_WRITE.match(advice := advice_for_key((name,))):
        error.possibilities = [f"--{written[1]}"]
    elif advice:
        error.message, error.possibilities = f"{error.message}; {advice}", None


class ConfigCommand(TyperCommand):
    """Command that accepts run files and overrides in all spellings listed in this module's docstring."""

    accepts_passthrough = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Rewrite run files and overrides to `--config` and `--set`, then parse as usual."""
        tokens, passthrough = split_passthrough(args) if self.accepts_passthrough else (args, [])
        ctx.obj = tuple(passthrough)
        if len(files := _text_files(tokens)) > 1:
            way = "quote the pattern, or pass the folder"
            ctx.fail(f"--text takes one path, and the shell passed {len(files)} files: {way}")
        try:
            tokens = self.rewrite(tokens)
        except MisplacedArgumentError as error:
            ctx.fail(str(error))
        try:
            rest: list[str] = super().parse_args(ctx, tokens)
        except UsageError as error:
            _explain_usage_error(error, args)
            raise
        return rest

    def rewrite(self, tokens: Sequence[str]) -> list[str]:
        """Return the arguments with run files as `--config` and overrides as `--set`."""
        return rewrite_tokens(tokens, self._options_with_value())

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line with run files as positional arguments, which are parsed as options."""
        return [*super().collect_usage_pieces(ctx), "[RUN_FILE]..."]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List arguments and options by help panel."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if row := param.get_help_record(ctx):
                panel = getattr(param, "rich_help_panel", None)  # the option --help may have none
                title = panel or f"{param.param_type_name.title()}s"
                sections.setdefault(title, []).append(row)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete options; after `--` and a letter, also config keys, of which there are hundreds."""
        offered = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("--") and incomplete != "--":
            item = type(super().shell_complete(ctx, "--help")[0])
            offered += map(item, key_options(incomplete))
        return offered

    def _options_with_value(self) -> set[str]:
        spelled = (opt for param in self.params if not getattr(param, "is_flag", True) for opt in param.opts)
        return {variant for opt in spelled for variant in (opt, opt.replace("-", "_").replace("__", "--", 1))}


class PathsCommand(ConfigCommand):
    """Command that takes run files and other paths as positional arguments."""

    def rewrite(self, tokens: Sequence[str]) -> list[str]:
        """Return the arguments with run files as paths and overrides as `--set`."""
        return [token for token in super().rewrite(tokens) if token != "--config"]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Show the paths once in the usage line."""
        pieces: list[str] = super().collect_usage_pieces(ctx)
        return pieces[:-1]


class TrainCommand(ConfigCommand):
    """Command that passes the arguments after `--` to torchrun."""

    accepts_passthrough = True
