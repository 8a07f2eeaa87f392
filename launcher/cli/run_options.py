"""Options of the commands about runs, with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

# preflight
Levels = Annotated[
    str,
    Option(
        "--level",
        metavar="LEVELS",
        help="Comma-separated: static, host, gpu, distributed, data, rehearsal, full. Default: full for a "
        "production run, static,host,gpu for a smoke run.",
    ),
]
FactsFile = Annotated[
    Path | None,
    Option(
        "--facts",
        metavar="FILE",
        help="Check recorded facts instead of this machine; runs no probes and writes no receipt.",
    ),
]
SaveFacts = Annotated[Path | None, Option("--save-facts", metavar="FILE", help="Save the facts as JSON.")]
ResultsFolder = Annotated[
    Path | None,
    Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for report, facts and receipt. Default: .neobert/preflight/DIGEST.",
    ),
]

# validate-gpu
Full = Annotated[bool, Option("--full", help="Probe all installed backends, not only the selected one.")]

# train; the last six as torchrun names them
CHECKS, PROCESSES, SEVERAL_RUNS = "Checks", "Several processes", "Several runs"
Resume = Annotated[
    str | None,
    Option(
        "--resume",
        metavar="auto|never|PATH",
        help="Checkpoint to resume from; auto takes the newest of the run.",
    ),
]
ReceiptFile = Annotated[
    Path | None,
    Option(
        "--receipt",
        rich_help_panel=CHECKS,
        metavar="PATH",
        help="Reuse an earlier preflight result; rejected if anything changed since.",
    ),
]
Unguarded = Annotated[
    str | None,
    Option(
        "--unguarded",
        rich_help_panel=CHECKS,
        metavar="REASON",
        help="Launch even if checks fail; REASON is recorded with the run.",
    ),
]
Stages = Annotated[
    str | None,
    Option(
        "--stages",
        rich_help_panel=CHECKS,
        metavar="STEPS",
        help="Check loss, throughput and memory at these steps (1,300,1000); exit with 93 if one fails.",
    ),
]
Sweep = Annotated[
    list[str] | None,
    Option(
        "--sweep",
        rich_help_panel=SEVERAL_RUNS,
        metavar="KEY=VALUES",
        help="Train once for each value: VALUE,VALUE,... or START:STOP:STEP (STOP excluded). Repeat the "
        "option for a grid of all combinations; every point is checked and listed before the first starts.",
    ),
]
Search = Annotated[
    list[str] | None,
    Option(
        "--search",
        rich_help_panel=SEVERAL_RUNS,
        metavar="KEY=RANGE",
        help="Train trials that Optuna chooses: log(LOW,HIGH), uniform(LOW,HIGH), int(LOW,HIGH) or "
        "VALUE,VALUE,... Repeat the option for further keys; the corners are checked and listed before the "
        "first trial.",
    ),
]
Trials = Annotated[
    int | None,
    Option(
        "--trials",
        rich_help_panel=SEVERAL_RUNS,
        metavar="N",
        min=1,
        help="Number of trials of the search. Default: 20.",
    ),
]
Metric = Annotated[
    str | None,
    Option(
        "--metric",
        rich_help_panel=SEVERAL_RUNS,
        metavar="NAME",
        help="Metric that the search optimizes. Default: eval/loss.",
    ),
]
AllowUnequalTokens = Annotated[
    bool,
    Option(
        "--allow-unequal-tokens",
        rich_help_panel=SEVERAL_RUNS,
        help="Allow points that train on different numbers of tokens, or resume a run with other settings.",
    ),
]
Parallel = Annotated[
    int | None,
    Option(
        "--parallel",
        rich_help_panel=SEVERAL_RUNS,
        metavar="N",
        min=1,
        help="Train N points or trials at the same time, each on its own GPUs and cores.",
    ),
]
Point = Annotated[
    int | None,
    Option(
        "--point",
        rich_help_panel=SEVERAL_RUNS,
        metavar="INDEX",
        min=0,
        help="Train only this point of the sweep, from 0.",
    ),
]
Collect = Annotated[
    bool,
    Option(
        "--collect",
        rich_help_panel=SEVERAL_RUNS,
        help="Train nothing: write sweep.json from points that were trained separately.",
    ),
]
DryRun = Annotated[
    bool,
    Option(
        "--dry-run",
        rich_help_panel=CHECKS,
        help="Check the config and the run directory and print the command and its files; start nothing.",
    ),
]
BatchSize = Annotated[
    int | None,
    Option("--batch-size", metavar="ROWS", help="Set trainer.per_device_train_batch_size.", min=1),
]
Steps = Annotated[int | None, Option("--steps", metavar="N", help="Set trainer.max_steps.", min=1)]
NprocPerNode = Annotated[
    int | None, Option("--nproc-per-node", rich_help_panel=PROCESSES, metavar="N", help="Processes per node.")
]
Nnodes = Annotated[
    int | None, Option("--nnodes", rich_help_panel=PROCESSES, metavar="N", help="Number of nodes.")
]
NodeRank = Annotated[
    int | None,
    Option("--node-rank", rich_help_panel=PROCESSES, metavar="K", help="Rank of this node, from 0."),
]
MasterAddr = Annotated[
    str | None, Option("--master-addr", rich_help_panel=PROCESSES, metavar="HOST", help="Host of rank 0.")
]
MasterPort = Annotated[
    int | None,
    Option(
        "--master-port", rich_help_panel=PROCESSES, metavar="PORT", min=1, max=65535, help="Rendezvous port."
    ),
]
RdzvEndpoint = Annotated[
    str | None,
    Option("--rdzv-endpoint", rich_help_panel=PROCESSES, metavar="HOST:PORT", help="Rendezvous endpoint."),
]

# status, watch, runs, report
NEWEST = "Run directory. Default: the latest run below runs or the current directory."
RunDirectory = Annotated[Path | None, Argument(metavar="RUN", help=NEWEST)]
RunDirectories = Annotated[list[Path] | None, Argument(metavar="RUN", help=NEWEST)]
ComparedRuns = Annotated[
    list[Path],
    Argument(metavar="RUN", help="Two or more run directories."),
]
By = Annotated[
    Literal["step", "tokens"] | None,
    Option(
        "--by",
        help="Compare at equal steps or tokens. Default: steps if all runs have equal tokens per step.",
    ),
]
ReportedRuns = Annotated[
    list[Path] | None,
    Argument(
        metavar="RUN",
        help="Run directories, or folders of runs such as a sweep. Default: the latest run.",
    ),
]
RunsFolder = Annotated[
    Path | None,
    Argument(
        metavar="DIR",
        help="Folder that contains runs. Default: runs if it exists, else the current directory.",
    ),
]
ReportFile = Annotated[
    Path | None,
    Option(
        "--output",
        "-o",
        metavar="FILE",
        help="HTML file. Default: report.html, or compare.html, in the first RUN.",
    ),
]

# bench
BOverrides = Annotated[
    list[str] | None, Option("--b-set", metavar="KEY=VALUE", help="Override a key in the second config only.")
]
Against = Annotated[
    str | None, Option("--against", metavar="NAME|FILE", help="Profile or run file of the second config.")
]
Differing = Annotated[
    list[str] | None,
    Option(
        "--differing",
        metavar="KEYS",
        help="Keys or sections that may differ, in addition to the keys of --b-set.",
    ),
]
BenchSteps = Annotated[int, Option("--steps", metavar="N", help="Steps per config and round.")]
BenchTrim = Annotated[int, Option("--trim", metavar="N", help="Warm-up steps to discard in each round.")]
BenchRounds = Annotated[int, Option("--rounds", metavar="N", help="Rounds per config; a verdict needs 6.")]
BenchData = Annotated[
    Literal["synthetic", "own"], Option("--data", help="Synthetic documents, or the run's own data.")
]
Baseline = Annotated[
    Path | None, Option("--baseline", metavar="FILE", help="Earlier report to compare the first config with.")
]
BenchOutput = Annotated[
    Path | None, Option("--output", "-o", metavar="FILE", help="Save the report as JSON.")
]

SpeedrunRules = Annotated[Path, Argument(metavar="RULES", help="Rule file (docs/speedrun.md).")]
SpeedrunDryRun = Annotated[
    bool, Option("--dry-run", help="Check the rules, sources and runs and list the runs; start nothing.")
]
