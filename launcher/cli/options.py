"""Options of several commands, and commands that receive several options as one object."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from launcher.cli.completion import profile_names
from neobert.errors import EXIT_USAGE, ProjectError

TextOrJson = Literal["text", "json"]
AnyFormat = Literal["text", "json", "github", "sarif", "junit"]

# The run, on every command that takes a config.
Profile = Annotated[
    str | None,
    Option(
        "--profile",
        "-p",
        metavar="NAME",
        autocompletion=profile_names,
        help="Profile that the run is based on.",
    ),
]
Config = Annotated[
    list[Path] | None,
    Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Run file (YAML or TOML), the same as RUN_FILE; later files win.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    Option(
        "--set", metavar="KEY=VALUE", help="Override a key. Also: --section.key VALUE, section.key=VALUE."
    ),
]

StartingWeights = Annotated[
    str | None,
    Option(
        "--from",
        "--model-name",
        metavar="FOLDER|NAME",
        help="Start from the weights of a model: a transformers folder, or a run directory of this program. "
        "Optimizer and schedule are new.",
    ),
]
Context = Annotated[
    int | None,
    Option(
        "--context",
        metavar="TOKENS",
        min=32,
        help="With --from: extend the context of the model to this many tokens. Sets the "
        "rotary base, the batch and the minimum length of documents.",
    ),
]

# Output format and strictness.
Format = Annotated[TextOrJson, Option("--output-format", help="Output format; --json for short.")]
LintFormat = Annotated[
    AnyFormat, Option("--output-format", help="Output format of the findings; --json for short.")
]
Strict = Annotated[bool, Option("--strict", help="Treat warnings as failures.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print warnings, errors and the summary only.")]
FindingsOnly = Annotated[
    bool, Option("--quiet", "-q", help="Print findings only: no counts, no skipped files.")
]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Show every value or check, with reasons.")]


def require_at_most_one(**values: object) -> None:
    """Raise `ProjectError` if more than one of these options is set (not None).

    Options are passed by parameter name: `prompt_text` is --prompt-text.
    """
    given = [f"--{name.replace('_', '-')}" for name, value in values.items() if value is not None]
    if len(given) > 1:
        message, hint = f"{' and '.join(given)} are both set", f"remove {given[-1]}"
        raise ProjectError("options", message, hint, exit_code=EXIT_USAGE)


def with_options_from(build: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the first parameter of a command with the parameters of `build`, which returns its value.

    Parameters with a default come last, as Python requires; the parser does not depend on their order.
    """
    unknown = {build.__annotations__["return"]: object}  # imported for type checkers only

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        declared = inspect.signature(build, eval_str=True, locals=unknown).parameters
        first, *own = inspect.signature(command, eval_str=True, locals=unknown).parameters.values()

        def run(**given: Any) -> None:
            settings = {name: given.pop(name) for name in declared}
            command(**{first.name: build(**settings)}, **given)

        parameters = sorted([*declared.values(), *own], key=lambda each: each.default is not each.empty)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate
