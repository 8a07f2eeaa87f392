"""Arguments converted without pydantic are what typer makes of them."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer

from launcher.cli.groups import convert_without_pydantic, refuse_empty_paths
from neobert.errors import EXIT_USAGE


def command(annotation: Any, **options: Any) -> tuple[Any, Any]:
    app, seen = typer.Typer(add_completion=False, rich_markup_mode=None), []

    @app.command()
    def run(value: Any = None) -> None:
        seen.append(value)

    run.__annotations__["value"] = Annotated[annotation, typer.Option(**options)]
    return typer.main.get_command(app), seen


def converted(words: list[str], annotation: Any, *, plainly: bool, **options: Any) -> Any:
    built, seen = command(annotation, **options)
    with built.make_context("x", [], resilient_parsing=True) as context:
        if plainly:
            convert_without_pydantic(built, context)
            refuse_empty_paths(built, context)
    try:
        built.main(words, standalone_mode=False)
    except Exception as error:
        return type(error).__name__, str(error)
    return seen


@pytest.mark.parametrize(
    ("annotation", "options"),
    [
        (str, {}),
        (str | None, {}),
        (Path | None, {}),
        (list[Path] | None, {}),
        (list[str] | None, {}),
        (Literal["text", "json"], {}),
        (bool, {}),
        (int | None, {}),
        (int | None, {"min": 2}),
        (float | None, {}),
        (Path | None, {"exists": True}),
        (Path | None, {"parser": lambda text: Path("parsed", text)}),
    ],
)
@pytest.mark.parametrize(
    "words", [[], ["--value"], ["--value", "text"], ["--value", "1"], ["--value", "1", "--value", "b"]]
)
def test_a_value_is_what_typer_makes_of_it(words, annotation, options):
    expected = converted(words, annotation, plainly=False, **options)
    assert converted(words, annotation, plainly=True, **options) == expected


@pytest.mark.parametrize(
    "words",
    [
        ["export", "model", "--output", ""],
        ["encode", "model", "a.txt", "--output="],
        ["encode", "model", ""],
        ["predict", "model", ""],
        ["evaluate", "glue", "model", "glue", "-o", ""],
        ["data", "prepare", "--profile", "cpu-demo", "-o", ""],
        ["tokenizer", "train", "--profile", "cpu-demo", "-o", ""],
        ["preflight", "--profile", "cpu-demo", "--output", ""],
        ["plan", "--config", "run.yaml", "--config", ""],
        ["plan", ""],
        ["train", "--from", "", "--text", "a.txt"],
    ],
)
def test_an_empty_path_is_not_the_current_folder(words, tmp_path, command):
    command(*words).refused(EXIT_USAGE, "the path is empty; a shell variable may be unset [usage]")
    assert list(tmp_path.iterdir()) == []


def test_an_extra_argument_is_named_next_to_an_empty_value(command):
    command("plan", "extra", "--profile", "").refused(EXIT_USAGE, "unexpected extra argument (extra)")


def test_the_comparison_sees_what_is_converted():
    assert converted(["--value", "1"], int | None, plainly=True) == [1]
    assert converted(["--value", "a"], Path | None, plainly=True) == [Path("a")]
    kind, message = converted(["--value", "html"], Literal["text", "json"], plainly=True)
    assert (kind, "'text', 'json'" in message) == ("BadParameter", True)
