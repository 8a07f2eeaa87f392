"""Command line of `neobert-launch`. Commands are implemented in `launcher/commands` and imported on use."""

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
"""Variable by which a shell requests completions; typer prints them and exits."""
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
    "Launch NeoBERT training with preflight checks of config, machine and data.",
    f"Start with: {PROGRAM} profiles list; {PROGRAM} train --profile cpu-demo",
    completes=True,
)
profiles_app = _group("profiles", "Named profiles: list, show, diff.")
data_app = _group("data", "Training data: prepare.")
tokenizer_app = _group("tokenizer", "Tokenizers: train.")


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
]


@app.callback()
def _root(version: Version = False) -> None:
    pass


def _end(code: int) -> NoReturn:
    """Exit with the code of a command."""
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
    """Check run files and profiles with the static rules.

    Needs no GPU and does not import torch. Folders are searched for run files and profiles.
    """
    from launcher.commands import lint

    choice = lint.Choice(select=lint.split_codes(select), ignore=lint.split_codes(ignore))
    request = lint.Request(tuple(paths), choice, fix=fix, statistics=statistics, strict=strict)
    _end(lint.run(request, output_format))


@app.command("rule", epilog=f"Example: {PROGRAM} rule CKP001")
def _rule(
    code: options.RuleCode = None, every: options.EveryRule = False, output_format: options.Format = "text"
) -> None:
    """Print a rule's page, or the list of all rules.

    A page describes what the rule checks, why it matters, an example and its fix.
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
    """Explain a key: value, origin, meaning and allowed values."""
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

    Also reports work at risk and checkpoint size, each derived from the config; --verbose shows the reasons.
    A config that fails lint is planned too, but exits with its findings and code 1.
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

    Report, facts and receipt are written to a folder; --facts judges recorded facts on another machine.
    """
    from launcher.commands import preflight

    request = preflight.Request(
        _selection(profile, config, overrides),
        level,
        facts,
        save_facts,
        output,
        strict=strict,
        verbose=verbose,
    )
    _end(preflight.run(request, output_format))


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

    Checks isolation of packed documents bit by bit, parity with fp64, attention direction, determinism, and
    known products and throughput of the GPUs. Faults are planted in the same run, and a probe that misses
    one fails. Without a profile or a run file, validates the profile of the visible GPU.
    """
    from launcher.commands import validate_gpu

    chosen = _selection(profile, config, overrides)
    request = validate_gpu.Request(chosen, full, save_facts, strict=strict, verbose=verbose)
    _end(validate_gpu.run(request, output_format))


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
    """Run preflight, then train under supervision.

    Several processes run under torchrun, which receives the arguments after --. With --resume auto the same
    command resumes the run, any number of times.
    """
    from launcher.commands import train
    from launcher.preflight.receipts import require_reason
    from launcher.process.trainer_process import Topology
    from launcher.run.stages import parse_stages

    topology = Topology(
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        rdzv_endpoint=rdzv_endpoint,
        extra=tuple(context.obj),
    )
    all_overrides = [*(overrides or ()), *train.as_overrides(resume, nproc_per_node, nnodes)]
    chosen = _selection(profile, config, all_overrides)
    reason = require_reason(unguarded)
    request = train.Request(
        chosen,
        topology,
        dry_run,
        strict=strict,
        receipt=receipt,
        unguarded=reason,
        stages=parse_stages(stages),
    )
    _end(train.run(request, output_format))


@app.command("status", epilog=f"Example: {PROGRAM} status runs/demo")
def _status(run: options.RunDirectory, output_format: options.Format = "text") -> None:
    """Show a run's status."""
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

    Two configs run in turns on the same documents, each in its own process; --b-set or --against names the
    second. No checks are run and no checkpoints are saved.
    """
    from launcher.commands import bench

    arguments = bench.Arguments(
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
    _end(bench.run(arguments, output_format))


@data_app.command("prepare", cls=ConfigCommand, epilog=f"Example: {PROGRAM} data prepare -p cpu-demo")
def _data_prepare(
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    output: options.PreparedFolder = None,
    output_format: options.Format = "text",
) -> None:
    """Tokenize the data of a run, once, into the cache that train uses."""
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
    """Train a WordPiece tokenizer on the data of a run.

    Its size is tokenizer.vocab_size.
    """
    from launcher.commands import data

    chosen = _selection(profile, config, overrides)
    _end(data.train_tokenizer(chosen, output, output_format))


for _subgroup in (profiles_app, data_app, tokenizer_app):
    app.add_typer(_subgroup)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code. Tracebacks are printed only on request."""
    # pydantic's search for plugins reads the metadata of all packages, a tenth of the run time of `lint`.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        command = typer.main.get_command(app)
        with command.make_context(PROGRAM, list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except BrokenPipeError:  # the reader of the help text closed its pipe
        console.silence(sys.stdout)
    except (Exception, KeyboardInterrupt, TerminatedError) as error:
        from launcher.cli.errors import deliver, requested_format

        return deliver(error, requested_format(arguments))
    return EXIT_OK


def main() -> NoReturn:
    """Entry point of the console script."""
    if os.environ.get(COMPLETES):
        app(prog_name=PROGRAM)
    collect_rarely()
    unwind_when_terminated()
    console.open_closed_streams()
    console.accept_any_text()
    sys.exit(run(sys.argv[1:]))
