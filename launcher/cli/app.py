"""The command line `neobert-launch`: what it takes. What it does is in `launcher/commands`, imported late."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from launcher.cli import options
from launcher.cli.arguments import ConfigCommand, TrainCommand
from launcher.cli.help import CommandGroup
from launcher.commands.selection import Selection
from launcher.process.termination import TerminatedError, unwind_when_terminated
from launcher.terminal import console
from neobert import __version__
from neobert.errors import EXIT_OK
from neobert.gc_policy import collect_rarely

PROGRAM = "neobert-launch"
COMPLETES = "_NEOBERT_LAUNCH_COMPLETE"
"""Variable through which a shell asks what may follow; typer answers and ends."""
CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda name: name.replace("_", "-"),
    "max_content_width": 110,
}


def _group(name: str | None, text: str, epilog: str | None = None, *, completes: bool = False) -> typer.Typer:
    return typer.Typer(
        name=name,
        cls=CommandGroup,
        help=text,
        epilog=epilog,
        no_args_is_help=True,
        add_completion=completes,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=CONTEXT,
    )


app = _group(
    PROGRAM,
    "Guarded launching of NeoBERT training: check the run, the machine and the data, then train.",
    f"Start with: {PROGRAM} profiles list; {PROGRAM} train --profile cpu-demo",
    completes=True,
)
profiles_app = _group("profiles", "Named profiles: list, show, diff.")
data_app = _group("data", "Training data: prepare.")
tokenizer_app = _group("tokenizer", "Tokenizers: train.")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
]


@app.callback()
def _root(version: Version = False) -> None:
    pass


def _end(code: int) -> NoReturn:
    """End the command line with what a command returned."""
    raise typer.Exit(code)


def _selection(profile: str | None, config: list[Path] | None, overrides: Sequence[str] | None) -> Selection:
    return Selection(profile, tuple(config or ()), tuple(overrides or ()))


@profiles_app.command("list")
def _profiles_list(output_format: options.Format = "text") -> None:
    """List the profiles with their intent and hardware."""
    from launcher.commands import profiles

    _end(profiles.list_all(output_format))


@profiles_app.command("show")
def _profiles_show(
    name: options.ProfileName, output_format: options.Format = "text", verbose: options.Verbose = False
) -> None:
    """Show a profile's values with their origin.

    Keys that keep their default are shown with --verbose only.
    """
    from launcher.commands import profiles

    _end(profiles.show(name, output_format, verbose=verbose))


@profiles_app.command("diff")
def _profiles_diff(
    first: options.FirstProfile, second: options.SecondProfile, output_format: options.Format = "text"
) -> None:
    """Show the keys in which two profiles differ."""
    from launcher.commands import profiles

    _end(profiles.diff(first, second, output_format))


@app.command("lint", epilog=f"Example: {PROGRAM} lint configs/ run.yaml --output-format github")
def _lint(
    paths: options.Paths,
    output_format: options.LintFormat = "text",
    select: options.Select = None,
    ignore: options.Ignore = None,
    fix: options.Fix = False,
    statistics: options.Statistics = False,
    strict: options.Strict = False,
) -> None:
    """Judge run files and profiles with the static rules.

    It needs no GPU and imports no torch. Folders are searched for run files and profiles.
    """
    from launcher.commands import lint

    choice = lint.Choice(select=lint.split_codes(select), ignore=lint.split_codes(ignore))
    asked = lint.Asked(tuple(paths), choice, fix=fix, statistics=statistics, strict=strict)
    _end(lint.run(asked, output_format))


@app.command("rule", epilog=f"Example: {PROGRAM} rule CKP001")
def _rule(
    code: options.RuleCode = None, every: options.EveryRule = False, output_format: options.Format = "text"
) -> None:
    """Print a rule's page, or the list of all rules.

    A page says what the rule does, why what it finds is bad, and what to write instead.
    """
    from launcher.commands import rule

    _end(rule.run(code, output_format, every=every))


@app.command(
    "explain", cls=ConfigCommand, epilog=f"Example: {PROGRAM} explain trainer.save_steps -p a100-prod"
)
def _explain(
    key: options.Key,
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    output_format: options.Format = "text",
) -> None:
    """Explain a key: value, origin, meaning, what it takes."""
    from launcher.commands import explain

    _end(explain.run(key, _selection(profile, config, overrides), output_format))


@app.command("schema", epilog=f"Example: {PROGRAM} schema > neobert.schema.json")
def _schema() -> None:
    """Print the JSON Schema of run files, for editors."""
    from launcher.commands import schema

    _end(schema.run())


@app.command(
    "plan", cls=ConfigCommand, epilog=f"Example: {PROGRAM} plan -p a100-prod --trainer.max_steps 20000"
)
def _plan(
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    output_format: options.Format = "text",
    verbose: options.Verbose = False,
) -> None:
    """Estimate size, memory, time and cost of a run.

    Also work at risk and checkpoints, each derived from the config; --verbose gives the reasons. A config
    that lint refuses is planned, and ends with its findings and exit code 1.
    """
    from launcher.commands import plan

    chosen = _selection(profile, config, overrides)
    _end(plan.run(chosen, output_format, verbose=verbose))


@app.command(
    "preflight", cls=ConfigCommand, epilog=f"Example: {PROGRAM} preflight -p a100-prod --output-format json"
)
def _preflight(
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    level: options.Levels = "",
    facts: options.FactsFile = None,
    save_facts: options.SaveFacts = None,
    output: options.ResultsFolder = None,
    output_format: options.Format = "text",
    strict: options.Strict = False,
    verbose: options.Verbose = False,
) -> None:
    """Check the run, this machine and its GPUs.

    Report, facts and receipt are written to a folder; facts can be judged again elsewhere with --facts.
    """
    from launcher.commands import preflight

    asked = preflight.Asked(
        _selection(profile, config, overrides),
        level,
        facts,
        save_facts,
        output,
        strict=strict,
        verbose=verbose,
    )
    _end(preflight.run(asked, output_format))


@app.command("validate-gpu", cls=ConfigCommand, epilog=f"Example: {PROGRAM} validate-gpu -p h200-prod --full")
def _validate_gpu(
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    full: options.Full = False,
    save_facts: options.SaveFacts = None,
    output_format: options.Format = "text",
    strict: options.Strict = False,
    verbose: options.Verbose = False,
) -> None:
    """Verify the numerics of a training step on this machine.

    Isolation of packed documents to the last bit, parity with fp64, direction, repeats; known answers and
    rates of the GPUs. Faults are planted in the same run, and one that no probe sees is a failure. Without
    a profile or a run file, the profile of the visible GPU is validated.
    """
    from launcher.commands import validate_gpu

    chosen = _selection(profile, config, overrides)
    asked = validate_gpu.Asked(chosen, full, save_facts, strict=strict, verbose=verbose)
    _end(validate_gpu.run(asked, output_format))


@app.command(
    "train",
    cls=TrainCommand,
    epilog=f"Example: {PROGRAM} train -p cpu-demo --resume auto --set trainer.max_steps=900",
)
def _train(
    context: typer.Context,
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    resume: options.Resume = None,
    dry_run: options.DryRun = False,
    nproc_per_node: options.NprocPerNode = None,
    nnodes: options.Nnodes = None,
    node_rank: options.NodeRank = None,
    master_addr: options.MasterAddr = None,
    master_port: options.MasterPort = None,
    rdzv_endpoint: options.RdzvEndpoint = None,
    receipt: options.ReceiptFile = None,
    unguarded: options.Unguarded = None,
    stages: options.Stages = None,
    output_format: options.Format = "text",
    strict: options.Strict = False,
) -> None:
    """Check, then train, watched from outside.

    More than one process runs under torchrun, which gets what follows --. With --resume auto the same command
    goes on where it stopped, as often as needed.
    """
    from launcher.commands import train
    from launcher.preflight.receipts import require_reason
    from launcher.process.trainer_process import Topology
    from launcher.run.stages import parse_stages

    meeting = Topology(
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        rdzv_endpoint=rdzv_endpoint,
        extra=tuple(context.obj),
    )
    spelled = [*(overrides or ()), *train.as_overrides(resume, nproc_per_node, nnodes)]
    chosen = _selection(profile, config, spelled)
    reason = require_reason(unguarded)
    asked = train.Asked(
        chosen,
        meeting,
        dry_run,
        strict=strict,
        receipt=receipt,
        unguarded=reason,
        stages=parse_stages(stages),
    )
    _end(train.run(asked, output_format))


@app.command("status", epilog=f"Example: {PROGRAM} status runs/demo")
def _status(run: options.RunDirectory, output_format: options.Format = "text") -> None:
    """Say in one line how a run stands."""
    from launcher.commands import status

    _end(status.run(run, output_format))


@app.command(
    "bench",
    cls=ConfigCommand,
    epilog=f"Example: {PROGRAM} bench -p h200-prod --b-set model.kernel_backend=torch --output ab.json",
)
def _bench(
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    b_overrides: options.BOverrides = None,
    against: options.Against = None,
    differing: options.Differing = None,
    steps: options.BenchSteps = 200,
    trim: options.BenchTrim = 50,
    rounds: options.BenchRounds = 6,
    data: options.BenchData = "synthetic",
    baseline: options.Baseline = None,
    output: options.BenchOutput = None,
    output_format: options.Format = "text",
) -> None:
    """Measure the speed of a run, or compare two configs.

    Two arms take turns on the same documents, each in a process of its own; --b-set or --against names the
    second. Nothing is checked beforehand and nothing is saved.
    """
    from launcher.commands import bench

    asked = bench.Asked(
        selection=_selection(profile, config, overrides),
        against=against,
        b_overrides=tuple(b_overrides or ()),
        differing=tuple(key for keys in differing or () for key in keys.split(",") if key),
        steps=steps,
        trim=trim,
        rounds=rounds,
        data=data,
        baseline=baseline,
        output=output,
    )
    _end(bench.run(asked, output_format))


@data_app.command("prepare", cls=ConfigCommand, epilog=f"Example: {PROGRAM} data prepare -p cpu-demo")
def _data_prepare(
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    output: options.PreparedFolder = None,
    output_format: options.Format = "text",
) -> None:
    """Tokenise the text of a run once, where train looks for it."""
    from launcher.commands import data

    _end(data.prepare(_selection(profile, config, overrides), output, output_format))


@tokenizer_app.command(
    "train", cls=ConfigCommand, epilog=f"Example: {PROGRAM} tokenizer train -c run.yaml -o tok"
)
def _tokenizer_train(
    output: options.TokenizerFolder,
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    output_format: options.Format = "text",
) -> None:
    """Train a WordPiece tokenizer on the text of a run.

    It gets tokenizer.vocab_size entries.
    """
    from launcher.commands import data

    chosen = _selection(profile, config, overrides)
    _end(data.train_tokenizer(chosen, output, output_format))


for _subgroup in (profiles_app, data_app, tokenizer_app):
    app.add_typer(_subgroup)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Nothing but a wish for it prints a traceback."""
    # Its search for plugins reads the metadata of every installed package: a tenth of the time of `lint`.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        command = typer.main.get_command(app)
        with command.make_context(PROGRAM, list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except BrokenPipeError:  # the reader of a help page went away
        console.silence(sys.stdout)
    except (Exception, KeyboardInterrupt, TerminatedError) as error:
        from launcher.cli.errors import asked_format, deliver

        return deliver(error, asked_format(arguments))
    return EXIT_OK


def main() -> NoReturn:
    """The entry point of the console script."""
    if os.environ.get(COMPLETES):
        app(prog_name=PROGRAM)
    collect_rarely()
    unwind_when_terminated()
    console.open_closed_streams()
    console.accept_any_text()
    sys.exit(run(sys.argv[1:]))
