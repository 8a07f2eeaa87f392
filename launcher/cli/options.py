"""Every argument and option of the command line, with the line of help that it gets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from launcher.cli import completion

TextOrJson = Literal["text", "json"]
AnyFormat = Literal["text", "json", "github", "sarif", "junit"]

# Which run, on every command that takes a config.
Profile = Annotated[
    str | None,
    Option(
        "--profile",
        "-p",
        metavar="NAME",
        autocompletion=completion.profile_names,
        help="Named profile to build on.",
    ),
]
Config = Annotated[
    list[Path] | None,
    Option("--config", "-c", metavar="FILE", help="Run file, YAML or TOML; later ones win. Also: @ FILE."),
]
Overrides = Annotated[
    list[str] | None,
    Option(
        "--set", metavar="KEY=VALUE", help="Override a key. Also: --section.key VALUE, section.key=VALUE."
    ),
]

# How to print, how strictly to judge.
Format = Annotated[TextOrJson, Option("--output-format", help="How to print the result.")]
LintFormat = Annotated[AnyFormat, Option("--output-format", help="How to print the findings.")]
Strict = Annotated[bool, Option("--strict", help="Warnings fail too.")]
Verbose = Annotated[bool, Option("--verbose", "-v", help="More: every value or check, every reason.")]

# profiles
ProfileName = Annotated[
    str, Argument(metavar="NAME", autocompletion=completion.profile_names, help="Profile.")
]
FirstProfile = Annotated[str, Argument(metavar="A", autocompletion=completion.profile_names, help="Profile.")]
SecondProfile = Annotated[
    str, Argument(metavar="B", autocompletion=completion.profile_names, help="Profile.")
]

# lint, rule, explain
Paths = Annotated[list[Path], Argument(metavar="PATH", help="Run files, profiles, or folders of them.")]
Select = Annotated[
    list[str] | None, Option("--select", metavar="CODES", help="Only these; prefixes such as CKP do.")
]
Ignore = Annotated[list[str] | None, Option("--ignore", metavar="CODES", help="All but these.")]
Fix = Annotated[bool, Option("--fix", help="Mend what can be mended safely, in place.")]
Statistics = Annotated[bool, Option("--statistics", help="Count findings by code.")]
RuleCode = Annotated[
    str | None,
    Argument(metavar="[CODE]", autocompletion=completion.rule_codes, help="Code or name of a rule."),
]
EveryRule = Annotated[bool, Option("--all", help="List all rules.")]
Key = Annotated[
    str,
    Argument(
        metavar="KEY", autocompletion=completion.keys, help="Key of the config, or a value of the plan."
    ),
]

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
    Path | None, Option("--facts", metavar="FILE", help="Judge recorded facts: no probe, no receipt.")
]
SaveFacts = Annotated[Path | None, Option("--save-facts", metavar="FILE", help="Keep a copy of the facts.")]
ResultsFolder = Annotated[
    Path | None,
    Option(
        "--output", metavar="DIR", help="Folder of report, facts and receipt [.neobert/preflight/DIGEST]."
    ),
]

# validate-gpu
Full = Annotated[bool, Option("--full", help="Probe every installed backend, not only the one that runs.")]

# train; the last six in torchrun's words
Resume = Annotated[str | None, Option("--resume", metavar="auto|never|PATH", help="Where to go on from.")]
ReceiptFile = Annotated[
    Path | None,
    Option(
        "--receipt",
        metavar="PATH",
        help="Go by a preflight's receipt, the file or its folder; refused where anything changed.",
    ),
]
Unguarded = Annotated[
    str | None,
    Option("--unguarded", metavar="REASON", help="Start whatever the checks say; the reason is recorded."),
]
Stages = Annotated[
    str | None,
    Option(
        "--stages",
        metavar="STEPS",
        help="Judge loss, throughput and memory at these steps (1,300,1000); stop with exit 93 if one fails.",
    ),
]
DryRun = Annotated[
    bool, Option("--dry-run", help="Check config and run directory, print command and files; start nothing.")
]
NprocPerNode = Annotated[int | None, Option("--nproc-per-node", metavar="N", help="Processes per node.")]
Nnodes = Annotated[int | None, Option("--nnodes", metavar="N", help="Nodes.")]
NodeRank = Annotated[int | None, Option("--node-rank", metavar="K", help="Number of this node.")]
MasterAddr = Annotated[str | None, Option("--master-addr", metavar="HOST", help="Where rank 0 runs.")]
MasterPort = Annotated[
    int | None, Option("--master-port", metavar="PORT", min=1, max=65535, help="Its port.")
]
RdzvEndpoint = Annotated[str | None, Option("--rdzv-endpoint", metavar="HOST:PORT", help="Where nodes meet.")]

# bench
BOverrides = Annotated[
    list[str] | None, Option("--b-set", metavar="KEY=VALUE", help="Override a key in the second arm only.")
]
Against = Annotated[
    str | None, Option("--against", metavar="NAME|FILE", help="Profile or run file of the second arm.")
]
Differing = Annotated[
    list[str] | None,
    Option("--differing", metavar="KEYS", help="Keys or sections that may differ, besides those of --b-set."),
]
BenchSteps = Annotated[int, Option("--steps", metavar="N", help="Steps of each arm.")]
BenchTrim = Annotated[int, Option("--trim", metavar="N", help="Those at the beginning that do not count.")]
BenchRounds = Annotated[int, Option("--rounds", metavar="N", help="Turns of each arm; below 6 no verdict.")]
BenchData = Annotated[
    Literal["synthetic", "own"], Option("--data", help="Documents made up for this, or the run's own.")
]
Baseline = Annotated[
    Path | None, Option("--baseline", metavar="FILE", help="Earlier report to compare the first arm with.")
]
BenchOutput = Annotated[Path | None, Option("--output", metavar="FILE", help="Keep the report as JSON.")]

# status, data prepare, tokenizer train
RunDirectory = Annotated[Path, Argument(metavar="RUN", help="Run directory.")]
PreparedFolder = Annotated[
    Path | None,
    Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder to write, empty or new; a run uses it as dataset.cache_dir. Default: the cache.",
    ),
]
TokenizerFolder = Annotated[
    Path, Option("--output", "-o", metavar="DIR", help="Folder to write; it must be empty or new.")
]
