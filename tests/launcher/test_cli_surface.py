"""The command line is a contract: what it takes changes only together with the snapshot beside this test.

`NEOBERT_UPDATE_SNAPSHOT=1 pytest tests/launcher/test_cli_surface.py` writes it anew.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from launcher.cli.app import app_with_all_commands
from neobert import __version__

SNAPSHOT = Path(__file__).with_name("cli_surface.txt")


def surface(command: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    for param in command.params:
        names = ", ".join([*param.opts, *param.secondary_opts])
        traits = [trait for trait in ("required", "multiple", "is_flag") if getattr(param, trait, False)]
        yield " ".join(["neobert-launch", *words, f"[{names}]", *traits])
    for name, child in getattr(command, "commands", {}).items():
        yield from surface(child, (*words, name))


def test_the_surface_is_the_one_in_the_snapshot():
    now = [f"{line}\n" for line in surface(typer.main.get_command(app_with_all_commands()))]
    if os.environ.get("NEOBERT_UPDATE_SNAPSHOT"):
        SNAPSHOT.write_text("".join(now), encoding="utf-8")
    with SNAPSHOT.open(encoding="utf-8") as kept:  # commands are in the order in which they were imported
        assert sorted(now) == sorted(kept)


@pytest.mark.parametrize("group", ["data", "evaluate", "profiles", "tokenizer"])
def test_the_help_of_a_group_names_its_commands(group):
    commands = typer.main.get_command(app_with_all_commands()).commands[group]
    listed = commands.help.rpartition(": ")[2].rstrip(".").split(", ")
    assert sorted(listed) == sorted(name for name, each in commands.commands.items() if not each.hidden)


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_gets_the_whole_of_each_line(width):
    text = CliRunner().invoke(app_with_all_commands(), ["-h"], terminal_width=width).output
    assert "..." not in text.partition("Config:")[2]
    assert "Check run files and profiles with the static rules." in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(
    "words",
    [
        "", "init", "profiles", "profiles list", "profiles show", "profiles diff", "lint", "rule", "explain",
        "schema", "plan", "preflight", "validate-gpu", "train", "status", "data", "data prepare", "tokenizer",
        "tokenizer train", "report", "bench", "export", "encode", "search", "bench speed", "bench speedrun",
        "evaluate", "evaluate glue", "evaluate blimp", "evaluate pseudo-perplexity",
        "evaluate retrieval", "evaluate mteb",
    ],
)  # fmt: skip
def test_every_command_has_help(words, command):
    answer = command(*words.split(), "--help").passed()
    assert answer.out.startswith("Usage: ")
    assert "{" not in answer.out  # typer's mark of a required argument, which reads like a set of choices
    assert "<path>" not in answer.out
    assert "list[" not in answer.out


def test_help_lists_the_options_of_several_runs_apart(command):
    page = command("train", "-h").out
    before, title, after = page.partition("\n\nSeveral runs:\n")
    assert title
    assert ("--resume auto" in before, "--sweep KEY" in before, "--sweep KEY" in after) == (True, False, True)


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("runs compare", "[OPTIONS] RUN..."), ("init", "[OPTIONS] [FILE]"),
        ("encode", "[OPTIONS] FOLDER TEXTS"),
        ("status", "[OPTIONS] [RUN]..."), ("rule", "[OPTIONS] [CODE]"), ("runs list", "[OPTIONS] [DIR]"),
    ],
)  # fmt: skip
def test_usage_names_arguments_as_other_tools_do(words, usage, command):
    first = command(*words.split(), "-h").out.splitlines()[0]
    assert first.endswith(f" {words} {usage}")


@pytest.mark.parametrize(
    "words",
    [
        ["lint"], ["rule"], ["explain"], ["plan"], ["preflight"], ["train"], ["status"], ["data", "prepare"],
        ["bench"], ["bench", "speedrun"], ["report"],
    ],
)  # fmt: skip
def test_help_has_an_example(words, command):
    page = command(*words, "-h").out
    assert f"Example: neobert-launch {' '.join(words)}" in page


def test_version(command):
    answer = command("--version")
    assert (answer.code, answer.out) == (0, f"neobert-launch {__version__}\n")
