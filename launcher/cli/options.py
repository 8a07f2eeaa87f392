"""Options of several commands: the run, the output format, strictness."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

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
        help="Named profile to build on.",
    ),
]
Config = Annotated[
    list[Path] | None,
    Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Run file (YAML or TOML), as RUN_FILE without the option; later files win.",
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
        help="With --from: train on rows of this many tokens, more than the model's own. Sets rotary "
        "positions, batch and length of documents.",
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


def at_most_one(**values: object) -> None:
    """Raise `ProjectError` if two of these options are set; `prompt_text` is --prompt-text."""
    given = [f"--{name.replace('_', '-')}" for name, value in values.items() if value is not None]
    if len(given) > 1:
        message, hint = f"{' and '.join(given)} are both set", f"remove {given[-1]}"
        raise ProjectError("options", message, hint, exit_code=EXIT_USAGE)
