"""Declarations of the commands about runs: plan, preflight, train, status, reports, benchmarks."""

from __future__ import annotations

import typer

from launcher.cli import config_options, options, run_options
from launcher.cli.arguments import ConfigCommand, TrainCommand
from launcher.cli.groups import PROGRAM, DefaultCommandGroup, app, exit_with, make_group
from launcher.commands.selection import Selection
from neobert.tasks.short_commands import SHORT_COMMANDS

runs_app = make_group(
    "runs",
    "List the runs below a folder, or compare runs.",
    cls=DefaultCommandGroup,
    no_args_is_help=False,
    epilog=f"Example: {PROGRAM} runs experiments/ (without a command: runs list)",
)
bench_app = make_group(
    "bench",
    "Speed of a run, and time to a held-out loss: speed, speedrun.",
    cls=DefaultCommandGroup,
    no_args_is_help=False,
    epilog=f"Example: {PROGRAM} bench -p h200-prod (without a command: bench speed)",
)
app.add_typer(runs_app, rich_help_panel="Watch")
app.add_typer(bench_app, rich_help_panel="Measure")


@app.command(
    "plan",
    rich_help_panel="Run",
    cls=ConfigCommand,
    epilog=f"Example: {PROGRAM} plan -p a100-prod --trainer.max_steps 20000",
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

    chosen = Selection.from_options(profile, config, overrides)
    exit_with(plan.run(chosen, output_format, verbose=verbose))


@app.command(
    "preflight",
    rich_help_panel="Run",
    cls=ConfigCommand,
    epilog=f"Example: {PROGRAM} preflight -p a100-prod --output-format json",
)
def _preflight(
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    level: run_options.Levels = "",
    facts: run_options.FactsFile = None,
    save_facts: run_options.SaveFacts = None,
    output: run_options.ResultsFolder = None,
    output_format: options.Format = "text",
    strict: options.Strict = False,
    verbose: options.Verbose = False,
) -> None:
    """Check the run, this machine and its GPUs.

    Report, facts and receipt are written to a folder; --facts checks recorded facts on another machine.
    """
    from launcher.commands import preflight

    request = preflight.PreflightRequest(
        Selection.from_options(profile, config, overrides),
        level,
        facts,
        save_facts,
        output,
        strict=strict,
        verbose=verbose,
    )
    exit_with(preflight.run(request, output_format))


@app.command(
    "train",
    rich_help_panel="Run",
    cls=TrainCommand,
    epilog=f"Example: {PROGRAM} train -p cpu-demo --resume auto --set trainer.max_steps=900",
)
def _train(
    called: typer.Context,
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    resume: run_options.Resume = None,
    dry_run: run_options.DryRun = False,
    nproc_per_node: run_options.NprocPerNode = None,
    nnodes: run_options.Nnodes = None,
    node_rank: run_options.NodeRank = None,
    master_addr: run_options.MasterAddr = None,
    master_port: run_options.MasterPort = None,
    rdzv_endpoint: run_options.RdzvEndpoint = None,
    receipt: run_options.ReceiptFile = None,
    unguarded: run_options.Unguarded = None,
    stages: run_options.Stages = None,
    sweep: run_options.Sweep = None,
    search: run_options.Search = None,
    trials: run_options.Trials = None,
    metric: run_options.Metric = None,
    parallel: run_options.Parallel = None,
    allow_unequal_tokens: run_options.AllowUnequalTokens = False,
    point: run_options.Point = None,
    collect: run_options.Collect = False,
    weights: options.StartingWeights = None,
    text: config_options.Text = None,
    context: options.Context = None,
    batch_size: run_options.BatchSize = None,
    steps: run_options.Steps = None,
    output_format: options.Format = "text",
    strict: options.Strict = False,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
) -> None:
    """Run preflight, then train under supervision.

    --from MODEL --text PATH writes a run file as `init` does, and trains it; --task TASK sets what to train
    (`explain task` lists the tasks). --from MODEL next to a run file sets the keys of these weights. Several
    processes run under torchrun, which receives the arguments after --. With --resume auto the same
    command resumes the run, any number of times. --sweep and --search train several runs.
    """
    from launcher.commands import several_runs
    from launcher.commands.run_file_options import WeightsOptions, choose_run, size_overrides
    from launcher.commands.several_options import SeveralRunsOptions
    from launcher.commands.train import TrainRequest, launch_overrides
    from launcher.preflight.receipts import require_reason
    from launcher.process.trainer_process import Topology
    from launcher.run.stages import parse_stages

    given = [*(overrides or ()), *size_overrides(batch_size, steps)]
    stated = Selection.from_options(profile, config, given)
    chosen = choose_run(str(called.info_name), stated, WeightsOptions(weights, text, context))
    topology = Topology(
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        rdzv_endpoint=rdzv_endpoint,
        extra=tuple(called.obj),
    )
    request = TrainRequest(
        chosen.with_overrides(launch_overrides(resume, nproc_per_node, nnodes)),
        topology,
        dry_run,
        strict=strict,
        receipt=receipt,
        unguarded=require_reason(unguarded),
        stages=parse_stages(stages),
        quiet=quiet,
        verbose=verbose,
    )
    several = SeveralRunsOptions(
        sweep=tuple(sweep or ()),
        search=tuple(search or ()),
        trials=trials,
        metric=metric,
        parallel=parallel,
        point=point,
        collects=collect,
        allows_unequal_tokens=allow_unequal_tokens,
    )
    exit_with(several_runs.run(request, several, output_format))


for _name, _short in SHORT_COMMANDS.items():
    app.command(
        _name,
        rich_help_panel="Run",
        cls=TrainCommand,
        help=_short.help,
        epilog=f"Example: {PROGRAM} {_name} {_short.example}",
    )(_train)


@app.command("status", rich_help_panel="Watch", epilog=f"Example: {PROGRAM} status runs/demo")
def _status(run: run_options.RunDirectories = None, output_format: options.Format = "text") -> None:
    """Show the status of runs, one line each."""
    from launcher.commands import status

    exit_with(status.run(run or (), output_format))


@app.command("watch", rich_help_panel="Watch", epilog=f"Example: {PROGRAM} watch runs/demo")
def _watch(run: run_options.RunDirectory = None) -> None:
    """Show a run live: losses, throughput, memory, checkpoints and alerts.

    Redraws once a second until the run ends; Ctrl-C quits, and the run continues. Prints once if the
    output is not a terminal.
    """
    from launcher.commands import watch

    exit_with(watch.run(run))


@runs_app.command("list", epilog=f"Example: {PROGRAM} runs /scratch/me/runs --json")
def _runs(folder: run_options.RunsFolder = None, output_format: options.Format = "text") -> None:
    """List the runs below a folder: state, step, losses, throughput, last heartbeat, best evaluation."""
    from launcher.commands import runs

    exit_with(runs.run(folder, output_format))


@runs_app.command("compare", epilog=f"Example: {PROGRAM} runs compare runs/a runs/b")
def _compare(
    run: run_options.ComparedRuns, by: run_options.By = None, output_format: options.Format = "text"
) -> None:
    """Compare runs: config keys that differ and where each was set, results, metrics at equal steps."""
    from launcher.commands import compare

    exit_with(compare.run(run, by, output_format))


@app.command(
    "report",
    rich_help_panel="Watch",
    epilog=f"Example: {PROGRAM} report runs/sweep",
)
def _report(
    run: run_options.ReportedRuns = None,
    output: run_options.ReportFile = None,
) -> None:
    """Write the report of a run, or a comparison of several runs, as one HTML file.

    Shows charts over steps, tokens or time; checkpoints, restarts and evaluations; preflight findings; the
    config with origins; the machine. For several runs, shows their curves in the same charts, and the config
    keys that differ. The file is self-contained.
    """
    from launcher.commands import report

    exit_with(report.run(run or (), output))


@app.command(
    "validate-gpu",
    rich_help_panel="Measure",
    cls=ConfigCommand,
    epilog=f"Example: {PROGRAM} validate-gpu -p h200-prod --full",
)
def _validate_gpu(
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    full: run_options.Full = False,
    save_facts: run_options.SaveFacts = None,
    output_format: options.Format = "text",
    strict: options.Strict = False,
    verbose: options.Verbose = False,
) -> None:
    """Verify the numerics of a training step on this machine.

    Checks isolation of packed documents bit by bit, parity with fp64, attention direction, determinism, and
    known products and throughput of the GPUs. Faults are injected in the same run, and a probe that does not
    detect its fault fails. Without a profile or a run file, validates the profile of the visible GPU.
    """
    from launcher.commands import validate_gpu

    chosen = Selection.from_options(profile, config, overrides)
    request = validate_gpu.ValidationRequest(chosen, full, save_facts, strict=strict, verbose=verbose)
    exit_with(validate_gpu.run(request, output_format))


@bench_app.command(
    "speed",
    cls=ConfigCommand,
    epilog=f"Example: {PROGRAM} bench -p h200-prod --b-set model.kernel_backend=torch --output ab.json; "
    f"for the time to a loss: {PROGRAM} bench speedrun --help",
)
def _bench(
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    b_overrides: run_options.BOverrides = None,
    against: run_options.Against = None,
    differing: run_options.Differing = None,
    steps: run_options.BenchSteps = 200,
    trim: run_options.BenchTrim = 50,
    rounds: run_options.BenchRounds = 6,
    data: run_options.BenchData = "synthetic",
    baseline: run_options.Baseline = None,
    output: run_options.BenchOutput = None,
    output_format: options.Format = "text",
) -> None:
    """Measure the speed of a run, or compare two configs.

    Two configs run in turns on the same documents, each in its own process; --b-set or --against defines
    the second. No checks are run and no checkpoints are saved.
    """
    from launcher.commands import bench

    arguments = bench.BenchArguments(
        selection=Selection.from_options(profile, config, overrides),
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
    exit_with(bench.run(arguments, output_format))


@bench_app.command("speedrun", epilog=f"Example: {PROGRAM} bench speedrun examples/speedrun-rules.yaml")
def _speedrun(
    rules: run_options.SpeedrunRules,
    dry_run: run_options.SpeedrunDryRun = False,
    output_format: options.Format = "text",
) -> None:
    """Measure the time to a held-out loss, under a rule file.

    Trains the recipe once for each seed, in folders under trainer.output_dir, and writes record.json there.
    The record is valid if the mean loss is below the target by a one-sided t-test. The same command continues
    a speedrun that was stopped.
    """
    from launcher.commands import speedrun

    exit_with(speedrun.run(rules, output_format, dry_run=dry_run))
