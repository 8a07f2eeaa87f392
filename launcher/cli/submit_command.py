"""Declaration of the command that queues a run on a cluster: submit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from launcher.cli import options, run_options
from launcher.cli.arguments import ConfigCommand
from launcher.cli.groups import PROGRAM, app, exit_with
from launcher.commands.selection import Selection

To = Annotated[Literal["slurm", "skypilot", "kubernetes"], Option("--to", help="Engine that runs the job.")]
Nodes = Annotated[
    str,
    Option(
        "--nodes",
        metavar="N|MIN:MAX",
        help="Number of nodes. MIN:MAX (Slurm, with trainer.keep_step) takes as many as are free.",
    ),
]
Time = Annotated[str, Option("--time", metavar="HH:MM:SS", help="Time limit. Default: the partition's.")]
Partition = Annotated[str, Option("--partition", metavar="NAME", help="Partition. Default: the cluster's.")]
Account = Annotated[
    str, Option("--account", metavar="NAME", help="Account to charge. Default: the cluster's.")
]
Qos = Annotated[str, Option("--qos", metavar="NAME", help="Quality of service of the job.")]
SignalLead = Annotated[
    int | None,
    Option(
        "--signal-lead",
        metavar="SECONDS",
        min=1,
        help="Warn the run this long before the end. Default: 120, or the time of three saves if longer.",
    ),
]
RequeueLimit = Annotated[
    int,
    Option(
        "--requeue-limit",
        metavar="N",
        min=0,
        help="Maximum number of times that the job queues itself again.",
    ),
]
Setup = Annotated[
    str,
    Option(
        "--setup",
        metavar="COMMANDS",
        help="Shell commands before the launch: source .venv/bin/activate. Default: this environment.",
    ),
]
Extra = Annotated[
    list[str] | None,
    Option(
        "--extra", metavar="OPTION", help="Option of sbatch, as in --extra=--constraint=h100. Repeatable."
    ),
]
Gpu = Annotated[str, Option("--gpu", metavar="NAME", help="GPU for SkyPilot. Default: the profile's.")]
Image = Annotated[str, Option("--image", metavar="IMAGE", help="Container image (not on Slurm).")]
Volume = Annotated[
    list[str] | None,
    Option(
        "--volume",
        metavar="PATH=NAME",
        help="Shared volume (Kubernetes: a claim) to mount for the run directory and the data. Repeatable.",
    ),
]
Print = Annotated[bool, Option("--print", help="Print the job instead of queuing it.")]
Output = Annotated[
    Path | None,
    Option("--output", "-o", metavar="FILE", help="Write the job to a file instead of queuing it."),
]
Parallel = Annotated[
    int,
    Option(
        "--parallel",
        rich_help_panel=run_options.SEVERAL_RUNS,
        metavar="N",
        min=0,
        help="Maximum number of sweep points that run at the same time [all], or jobs that search [1].",
        show_default=False,
    ),
]


@app.command(
    "submit",
    rich_help_panel="Run",
    cls=ConfigCommand,
    epilog=f"Example: {PROGRAM} submit run.yaml --to slurm --nodes 2 --time 24:00:00 --print",
)
def _submit(
    to: To,
    profile: options.Profile = None,
    config: options.Config = None,
    overrides: options.Overrides = None,
    nodes: Nodes = "",
    nproc_per_node: run_options.NprocPerNode = None,
    time: Time = "",
    partition: Partition = "",
    account: Account = "",
    qos: Qos = "",
    signal_lead: SignalLead = None,
    requeue_limit: RequeueLimit = 20,
    setup: Setup = "",
    extra: Extra = None,
    gpu: Gpu = "",
    image: Image = "",
    volume: Volume = None,
    print_: Print = False,
    output: Output = None,
    sweep: run_options.Sweep = None,
    search: run_options.Search = None,
    trials: run_options.Trials = None,
    metric: run_options.Metric = None,
    parallel: Parallel = 0,
    allow_unequal_tokens: run_options.AllowUnequalTokens = False,
    strict: options.Strict = False,
) -> None:
    """Check a run and queue it on a cluster, where it is queued again until it has finished.

    Writes the batch script and the logs next to the run directory, in RUN.submit. The job saves before its
    time limit and at a preemption, and queues itself again; a run that cannot succeed is not queued again.
    With --sweep, queues an array with one job for each point; with --search, jobs that share the trials. For
    SkyPilot and Kubernetes it writes a file.
    """
    from launcher.commands import several_options, submit
    from launcher.commands.submit import parse_nodes

    named = {"--partition": partition, "--account": account, "--qos": qos}
    given = tuple(f"{option}={value}" for option, value in named.items() if value)
    chosen = submit.SubmitOptions(
        selection=Selection.from_options(profile, config, overrides),
        engine=to,
        gpu=gpu,
        image=image,
        volumes=tuple(volume or ()),
        nodes=parse_nodes(nodes) if nodes else None,
        nproc_per_node=nproc_per_node,
        time=time,
        signal_lead=signal_lead,
        requeue_limit=requeue_limit,
        setup=setup,
        options=(*given, *(extra or ())),
        is_printed=print_,
        output=output,
        several=several_options.SeveralRunsOptions(
            sweep=tuple(sweep or ()),
            search=tuple(search or ()),
            trials=trials,
            metric=metric,
            allows_unequal_tokens=allow_unequal_tokens,
        ),
        parallel=parallel,
        strict=strict,
    )
    exit_with(submit.run(chosen))
