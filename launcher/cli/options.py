"""Arguments and options of the command line, with their help texts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option


def profile_names(incomplete: str) -> list[str]:
    """Complete the name of a profile."""
    from profiles.registry import list_profiles

    return _beginning(list_profiles(), incomplete)


def keys(incomplete: str) -> list[str]:
    """Complete a key of the config."""
    from neobert.config import all_keys

    return _beginning(all_keys(), incomplete)


def key_options(incomplete: str) -> list[str]:
    """Complete a key that is spelled as an option: `--trainer.max_steps`."""
    return [f"--{key}" for key in keys(incomplete.removeprefix("--")) if "." in key]


def rule_codes(incomplete: str) -> list[str]:
    """Complete the code of a rule."""
    import validators.rules  # noqa: F401  registers every rule
    from validators.rule import RULES

    return _beginning(sorted(RULES), incomplete)


def export_formats(incomplete: str) -> list[str]:
    """Complete the last name of a comma-separated list of export formats."""
    from neobert.export_formats import FORMATS

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(FORMATS, last)]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


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

# Output format and strictness.
Format = Annotated[TextOrJson, Option("--output-format", help="Output format; --json for short.")]
LintFormat = Annotated[
    AnyFormat, Option("--output-format", help="Output format of the findings; --json for json.")
]
Strict = Annotated[bool, Option("--strict", help="Treat warnings as failures.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print warnings, errors and the summary only.")]
FindingsOnly = Annotated[
    bool, Option("--quiet", "-q", help="Print findings only: no counts, no skipped files.")
]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Show every value or check, with reasons.")]

# profiles
ProfileName = Annotated[
    str, Argument(metavar="NAME", autocompletion=profile_names, help="Name of a profile.")
]
FirstProfile = Annotated[str, Argument(metavar="A", autocompletion=profile_names, help="First profile.")]
SecondProfile = Annotated[str, Argument(metavar="B", autocompletion=profile_names, help="Second profile.")]

# init
NewRunFile = Annotated[Path, Argument(metavar="FILE", help="Run file to write; must not exist.")]
Text = Annotated[Path | None, Option("--text", metavar="PATH", help="File or folder of text to train on.")]
DataSet = Annotated[
    str | None,
    Option("--dataset", metavar="NAME", help="Hugging Face Hub dataset, or builtin:python-docs."),
]
ModelSize = Annotated[
    Literal["tiny", "small", "base"] | None,
    Option("--size", help="Size of the model. Default: tiny on a CPU, small on a GPU."),
]
DeviceChoice = Annotated[
    Literal["cpu", "gpu"] | None,
    Option("--device", help="Device to train on. Default: a GPU if there is one."),
]

# lint, rule, explain
Paths = Annotated[list[Path], Argument(metavar="PATH", help="Run files, profiles, or folders of them.")]
Select = Annotated[
    list[str] | None,
    Option("--select", metavar="CODES", help="Run only these rules (codes or prefixes, e.g. CKP)."),
]
Ignore = Annotated[list[str] | None, Option("--ignore", metavar="CODES", help="Skip these rules.")]
Fix = Annotated[bool, Option("--fix", help="Apply safe fixes in place.")]
Statistics = Annotated[bool, Option("--statistics", help="Count findings by code.")]
RuleCode = Annotated[
    str | None,
    Argument(metavar="CODE", autocompletion=rule_codes, help="Code or name of a rule."),
]
EveryRule = Annotated[bool, Option("--all", help="List all rules.")]
Key = Annotated[
    str,
    Argument(metavar="KEY", autocompletion=keys, help="Config key, or a value of the plan."),
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
    Path | None,
    Option("--facts", metavar="FILE", help="Judge recorded facts; run no probes, write no receipt."),
]
SaveFacts = Annotated[Path | None, Option("--save-facts", metavar="FILE", help="Save the facts as JSON.")]
ResultsFolder = Annotated[
    Path | None,
    Option(
        "--output", metavar="DIR", help="Folder for report, facts and receipt [.neobert/preflight/DIGEST]."
    ),
]

# validate-gpu
Full = Annotated[bool, Option("--full", help="Probe all installed backends, not only the selected one.")]

# train; the last six as torchrun names them
Resume = Annotated[
    str | None, Option("--resume", metavar="auto|never|PATH", help="Checkpoint to resume from.")
]
ReceiptFile = Annotated[
    Path | None,
    Option(
        "--receipt",
        metavar="PATH",
        help="Reuse an earlier preflight result; rejected if anything changed since.",
    ),
]
Unguarded = Annotated[
    str | None,
    Option("--unguarded", metavar="REASON", help="Launch even if checks fail; REASON is recorded."),
]
Stages = Annotated[
    str | None,
    Option(
        "--stages",
        metavar="STEPS",
        help="Check loss, throughput and memory at these steps (1,300,1000); exit with 93 if one fails.",
    ),
]
Sweep = Annotated[
    list[str] | None,
    Option(
        "--sweep",
        metavar="KEY=VALUES",
        help="Train once for each value: VALUE,VALUE,... or START:STOP:STEP (STOP excluded). Several --sweep "
        "combine; every point is checked and listed before the first starts.",
    ),
]
AllowUnequalTokens = Annotated[
    bool, Option("--allow-unequal-tokens", help="Allow points that train on different numbers of tokens.")
]
DryRun = Annotated[
    bool, Option("--dry-run", help="Check config and run directory, print command and files, start nothing.")
]
NprocPerNode = Annotated[int | None, Option("--nproc-per-node", metavar="N", help="Processes per node.")]
Nnodes = Annotated[int | None, Option("--nnodes", metavar="N", help="Number of nodes.")]
NodeRank = Annotated[int | None, Option("--node-rank", metavar="K", help="Rank of this node, from 0.")]
MasterAddr = Annotated[str | None, Option("--master-addr", metavar="HOST", help="Host of rank 0.")]
MasterPort = Annotated[
    int | None, Option("--master-port", metavar="PORT", min=1, max=65535, help="Rendezvous port.")
]
RdzvEndpoint = Annotated[
    str | None, Option("--rdzv-endpoint", metavar="HOST:PORT", help="Rendezvous endpoint.")
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
        help="Keys or sections that may differ, in addition to those of --b-set.",
    ),
]
BenchSteps = Annotated[int, Option("--steps", metavar="N", help="Steps per config and round.")]
BenchTrim = Annotated[int, Option("--trim", metavar="N", help="Warm-up steps to discard.")]
BenchRounds = Annotated[int, Option("--rounds", metavar="N", help="Rounds per config; no verdict below 6.")]
BenchData = Annotated[
    Literal["synthetic", "own"], Option("--data", help="Synthetic documents, or the run's own data.")
]
Baseline = Annotated[
    Path | None, Option("--baseline", metavar="FILE", help="Earlier report to compare the first config with.")
]
BenchOutput = Annotated[Path | None, Option("--output", metavar="FILE", help="Save the report as JSON.")]

SpeedrunRules = Annotated[Path, Argument(metavar="RULES", help="Rule file (docs/speedrun.md).")]
SpeedrunDryRun = Annotated[
    bool, Option("--dry-run", help="Check rules, sources and runs, list the runs, start nothing.")
]

# export
ExportSource = Annotated[
    Path,
    Argument(metavar="SOURCE", help="Run directory (newest checkpoint), checkpoint, or folder of weights."),
]
ExportFormats = Annotated[
    str,
    Option(
        "--to",
        metavar="FORMATS",
        autocompletion=export_formats,
        help="Comma-separated: hf, sentence-transformers, onnx, gguf-ready, fork.",
    ),
]
ExportOutput = Annotated[
    Path, Option("--output", "-o", metavar="DIR", help="Folder that receives one folder per format.")
]
Average = Annotated[
    str,
    Option(
        "--average",
        metavar="N|STEPS",
        help="Export the mean of the newest N checkpoints of a run, or of these steps (1000,2000).",
        show_default=False,
    ),
]

ExportResults = Annotated[
    list[Path] | None,
    Option("--results", metavar="FILE", help="JSON of `evaluate` for the model card. Repeatable."),
]

# status, runs, data prepare, tokenizer train
RunDirectory = Annotated[Path, Argument(metavar="RUN", help="Run directory.")]
RunDirectories = Annotated[list[Path], Argument(metavar="RUN", help="Run directory.")]
ComparedRuns = Annotated[
    list[Path],
    Argument(metavar="RUN", help="Two or more run directories."),
]
By = Annotated[
    Literal["step", "tokens"] | None,
    Option(
        "--by",
        help="Compare at equal steps or tokens. Default: steps, if all runs have equal tokens per step.",
    ),
]
RunsFolder = Annotated[Path, Argument(metavar="DIR", help="Folder that holds runs.")]
ComparedRun = Annotated[
    Path | None, Option("--compare", metavar="RUN", help="Second run, drawn in the same charts.")
]
ReportFile = Annotated[
    Path | None,
    Option("--output", "-o", metavar="FILE", help="HTML file. Default: report.html or compare.html in RUN."),
]
PreparedFolder = Annotated[
    Path | None,
    Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Output folder, empty or new; usable as dataset.cache_dir. Default: the cache.",
    ),
]
TokenizerFolder = Annotated[
    Path, Option("--output", "-o", metavar="DIR", help="Output folder; must be empty or new.")
]

# encode
ModelFolder = Annotated[
    Path,
    Argument(metavar="FOLDER", help="Exported folder, checkpoint, or run directory (its newest checkpoint)."),
]
TextsPath = Annotated[
    Path,
    Argument(
        metavar="TEXTS",
        help="Text file (one text per line), .jsonl, .csv, .tsv or .parquet, a dataset folder, or "
        "the name of a Hub dataset.",
    ),
]
EmbeddingsFile = Annotated[
    Path, Option("--output", "-o", metavar="FILE", help="Output file, .npy or .parquet; rows in input order.")
]
Column = Annotated[
    str | None, Option("--column", metavar="NAME", help="Column of the text [text, sentence or content].")
]
Split = Annotated[str, Option("--split", metavar="NAME", help="Split of a dataset folder.")]
Pooling = Annotated[
    Literal["avg", "cls", "max"] | None,
    Option("--pooling", help="Pooling of token vectors. Default: the folder's setting."),
]
Normalize = Annotated[
    bool | None,
    Option(
        "--normalize/--no-normalize", help="Scale embeddings to unit length. Default: the folder's setting."
    ),
]
MaxLength = Annotated[
    int | None,
    Option(
        "--max-length",
        metavar="N",
        min=3,
        help="Longest text in tokens; longer ones are truncated and counted.",
    ),
]
InferenceType = Annotated[
    Literal["bf16", "fp32"] | None,
    Option("--dtype", help="Compute type. Default: bf16 on a GPU, fp32 on the CPU."),
]
Processes = Annotated[
    int | None,
    Option("--processes", metavar="N", min=1, help="Processes that share the texts. Default: one per GPU."),
]
TextsPerShard = Annotated[
    int,
    Option(
        "--texts-per-shard",
        metavar="N",
        min=1,
        help="Texts between two saves; a killed job loses at most these.",
    ),
]

# evaluate
EvaluationData = Annotated[Path, Option("--data", metavar="DIR", help="Folder with the data.")]
GlueData = Annotated[
    Path,
    Option("--data", metavar="DIR", help="Folder with one subfolder per task, or the name of a Hub dataset."),
]
EvaluationFolder = Annotated[
    Path, Option("--output", "-o", metavar="DIR", help="Folder for results; the same folder continues them.")
]
GlueTasks = Annotated[
    str | None,
    Option("--tasks", metavar="NAMES", help="Comma-separated tasks, glue or superglue. Default: glue."),
]
Seeds = Annotated[int, Option("--seeds", metavar="N", min=1, help="Runs per task, with seeds from 0.")]
Transfer = Annotated[
    bool,
    Option("--transfer", help="Start rte, mrpc, stsb, qnli, cb and boolq from mnli's best checkpoint."),
]
RandomWeights = Annotated[
    bool, Option("--random-weights", help="Train the same shape from random weights, for comparison.")
]
KeepCheckpoints = Annotated[
    bool, Option("--keep-checkpoints", help="Keep the checkpoints of finished runs. Default: only metrics.")
]
Device = Annotated[
    Literal["cpu", "cuda"] | None, Option("--device", help="Default: cuda if a GPU is visible.")
]
PairsPerParadigm = Annotated[
    int | None,
    Option("--pairs-per-paradigm", metavar="N", min=1, help="Score only the first pairs of each paradigm."),
]
QueryPrefix = Annotated[str, Option("--query-prefix", metavar="TEXT", help="Text before each query.")]
DocumentPrefix = Annotated[
    str, Option("--document-prefix", metavar="TEXT", help="Text before each document.")
]
Benchmark = Annotated[
    str | None, Option("--benchmark", metavar="NAME", help="MTEB benchmark, e.g. 'MTEB(eng, v2)'.")
]
MtebTasks = Annotated[str | None, Option("--tasks", metavar="NAMES", help="Comma-separated MTEB tasks.")]
