"""Declarations of the commands about configs and training data."""

from __future__ import annotations

import json
from pathlib import Path

from launcher.cli import config_options, options, use_options
from launcher.cli.arguments import ConfigCommand, PathsCommand
from launcher.cli.groups import PROGRAM, app, exit_with, make_group
from launcher.commands.selection import Selection
from launcher.terminal import console

profiles_app = make_group("profiles", "Named profiles: list, show, diff.")
data_app = make_group("data", "Training data: prepare, join, mine.")
tokenizer_app = make_group("tokenizer", "Tokenizers: train.")
app.add_typer(profiles_app, rich_help_panel="Config")
app.add_typer(data_app, rich_help_panel="Data")
app.add_typer(tokenizer_app, rich_help_panel="Data")


@app.command(
    "init",
    rich_help_panel="Config",
    cls=PathsCommand,
    epilog=f"Example: {PROGRAM} init run.yaml --text novels/ --size small. To continue a "
    f"model: {PROGRAM} init run.yaml --from my-bert --text novels/",
)
def _init(
    file: config_options.NewRunFile = Path("run.yaml"),
    text: config_options.Text = None,
    dataset: config_options.DataSet = None,
    size: config_options.ModelSize = None,
    device: config_options.DeviceChoice = None,
    weights: options.StartingWeights = None,
    context: options.Context = None,
    task: config_options.Task = None,
    columns: config_options.Columns = None,
    output_format: options.Format = "text",
) -> None:
    """Write a first run file for your own text.

    With --from, the run continues to train a model or fine-tunes it; rates, lengths and padding are derived
    from its weights and your text. For a task with labels, columns and labels are inferred from the file.
    Comments explain the values to change first.
    """
    from launcher.commands import init

    given = tuple(columns or ())
    request = init.InitRequest(file, text, dataset, size, device, weights, task, context, given)
    exit_with(init.run(request, output_format))


@app.command(
    "lint",
    rich_help_panel="Config",
    cls=PathsCommand,
    epilog=f"Example: {PROGRAM} lint configs/ run.yaml --output-format github",
)
def _lint(
    paths: config_options.Paths,
    overrides: options.Overrides = None,
    output_format: options.LintFormat = "text",
    select: config_options.Select = None,
    ignore: config_options.Ignore = None,
    fix: config_options.Fix = False,
    data: config_options.Data = False,
    statistics: config_options.Statistics = False,
    strict: options.Strict = False,
    quiet: options.FindingsOnly = False,
) -> None:
    """Check run files and profiles with the static rules.

    Reads the first rows of local text. Needs no GPU and does not import torch. Folders are searched for run
    files and profiles.
    """
    from launcher.commands import lint

    choice = lint.RuleSelection(select=lint.split_codes(select), ignore=lint.split_codes(ignore))
    request = lint.LintRequest(
        tuple(paths),
        choice,
        fix,
        statistics,
        strict,
        quiet=quiet,
        needs_data=data,
        overrides=tuple(overrides or ()),
    )
    exit_with(lint.run(request, output_format))


@app.command("rule", rich_help_panel="Config", epilog=f"Example: {PROGRAM} rule CKP001")
def _rule(
    code: config_options.RuleCode = None,
    every: config_options.EveryRule = False,
    output_format: options.Format = "text",
) -> None:
    """Print a rule's page, or the list of all rules.

    A page describes what the rule checks, why it matters, an example and its fix.
    """
    from launcher.commands import rule

    exit_with(rule.run(code, output_format, lists_all=every))


@app.command(
    "explain",
    rich_help_panel="Config",
    cls=ConfigCommand,
    epilog=f"Example: {PROGRAM} explain trainer.save_steps -p a100-prod",
)
def _explain(
    key: config_options.Key,
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    output_format: options.Format = "text",
) -> None:
    """Explain a key: value, origin, meaning and allowed values."""
    from launcher.commands import explain

    exit_with(explain.run(key, Selection.from_options(profile, config, overrides), output_format))


@app.command("schema", rich_help_panel="Config", epilog=f"Example: {PROGRAM} schema > neobert.schema.json")
def _schema() -> None:
    """Print the JSON Schema of run files, for editors."""
    from neobert.config.hydrate import json_schema

    console.write(json.dumps(json_schema(), indent=2, ensure_ascii=False))


@profiles_app.command("list")
def _profiles_list(output_format: options.Format = "text") -> None:
    """List the profiles with their intent and hardware."""
    from launcher.commands import profiles

    exit_with(profiles.list_all(output_format))


@profiles_app.command("show")
def _profiles_show(
    name: config_options.ProfileName, output_format: options.Format = "text", verbose: options.Verbose = False
) -> None:
    """Show a profile's values with their origin.

    Keys that keep their default are shown with --verbose only.
    """
    from launcher.commands import profiles

    exit_with(profiles.show(name, output_format, verbose=verbose))


@profiles_app.command("diff")
def _profiles_diff(
    first: config_options.FirstProfile,
    second: config_options.SecondProfile,
    output_format: options.Format = "text",
) -> None:
    """Show the keys in which two profiles differ."""
    from launcher.commands import profiles

    exit_with(profiles.diff(first, second, output_format))


@data_app.command(
    "prepare",
    cls=ConfigCommand,
    epilog=f"Example: {PROGRAM} data prepare -p cpu-demo. Without a run: {PROGRAM} data prepare "
    "--text novels/ --tokenizer tok --max-length 512 -o prepared",
)
def _data_prepare(
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    dataset: config_options.PreparedText = None,
    tokenizer: config_options.PreparingTokenizer = None,
    max_length: config_options.RowLength = None,
    output: config_options.PreparedFolder = None,
    part: config_options.PartOfText = None,
    output_format: options.Format = "text",
) -> None:
    """Tokenize the data of a run into the cache that train uses.

    With --part K/N, tokenizes one of N parts; `data join` joins the parts.
    """
    from launcher.commands import data
    from launcher.commands.run_file_options import text_overrides

    given = text_overrides(dataset, tokenizer, max_length)
    chosen = Selection.from_options(profile, config, [*given, *(overrides or ())])
    exit_with(data.prepare(chosen, output, part, output_format))


@data_app.command("join", epilog=f"Example: {PROGRAM} data join prepared")
def _data_join(folder: config_options.PartsFolder, output_format: options.Format = "text") -> None:
    """Join the parts of a text that `data prepare --part` prepared, without copying them.

    The folder can then be dataset.cache_dir of the run.
    """
    from launcher.commands import data

    exit_with(data.join(folder, output_format))


@data_app.command("mine", epilog=f"Example: {PROGRAM} data mine embedder pairs.jsonl -o triples.jsonl")
def _data_mine(
    folder: use_options.ModelFolder,
    pairs: config_options.PairsFile,
    output: config_options.MinedFile,
    query_column: config_options.QueryColumn = None,
    positive_column: config_options.PositiveColumn = None,
    corpus: config_options.NegativesCorpus = None,
    negatives: config_options.NumNegatives = 1,
    max_share: config_options.MaxShare = 0.95,
    dtype: use_options.InferenceType = None,
    device: use_options.Device = None,
    output_format: options.Format = "text",
) -> None:
    """Add hard negatives to pairs of a query and a document.

    A negative is a document that is similar to the query but not paired with it in any row. Documents about
    as similar as the query's own document, or more, are skipped, because they probably answer the query too.
    """
    from launcher.commands import data
    from neobert.mining.request import Request

    request = Request(
        folder=str(folder),
        pairs=str(pairs),
        output=str(output),
        query_column=query_column,
        positive_column=positive_column,
        corpus=None if corpus is None else str(corpus),
        negatives=negatives,
        max_share=max_share,
        dtype=dtype,
        device=device,
    )
    exit_with(data.mine(request, output_format))


@tokenizer_app.command(
    "train", cls=ConfigCommand, epilog=f"Example: {PROGRAM} tokenizer train -c run.yaml -o tok"
)
def _tokenizer_train(
    output: config_options.TokenizerFolder,
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    output_format: options.Format = "text",
) -> None:
    """Train a tokenizer on the data of a run.

    tokenizer.vocab_size sets the vocabulary size; tokenizer.algorithm selects WordPiece or byte-level BPE.
    """
    from launcher.commands import data

    chosen = Selection.from_options(profile, config, overrides)
    exit_with(data.train_tokenizer(chosen, output, output_format))
