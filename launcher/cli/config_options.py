"""Options of the commands about configs and training data, with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from launcher.cli.completion import config_keys, profile_names, rule_codes

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
    Option("--size", help="Size of a new model. Default: tiny on a CPU, small on a GPU."),
]
Task = Annotated[
    str | None,
    Option(
        "--task",
        metavar="TASK",
        help="Task to train for (`explain task` lists them). Columns and labels are inferred from --text.",
    ),
]
Columns = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of the run file, as classification.label_column=NAME. Also: --section.key VALUE.",
    ),
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
Data = Annotated[
    bool,
    Option("--data", help="Fail if local text does not exist here, and open parquet and .zst files too."),
]
Statistics = Annotated[bool, Option("--statistics", help="Count findings by code.")]
RuleCode = Annotated[
    str | None,
    Argument(metavar="CODE", autocompletion=rule_codes, help="Code or name of a rule."),
]
EveryRule = Annotated[bool, Option("--all", help="List all rules.")]
Key = Annotated[
    str,
    Argument(metavar="KEY", autocompletion=config_keys, help="Config key, or a value of the plan."),
]

# data mine
PairsFile = Annotated[
    Path, Argument(metavar="PAIRS", help="Table with a query and its document per row (.jsonl, .csv, ...).")
]
MinedFile = Annotated[
    Path, Option("--output", "-o", metavar="FILE", help="Output file, .jsonl: the pairs and their negatives.")
]
QueryColumn = Annotated[
    str | None,
    Option("--query-column", metavar="NAME", help="Column of the query. Default: query, anchor, ..."),
]
PositiveColumn = Annotated[
    str | None,
    Option(
        "--positive-column", metavar="NAME", help="Column of the document. Default: positive, answer, ..."
    ),
]
NegativesCorpus = Annotated[
    Path | None,
    Option("--corpus", metavar="FILE", help="More texts to use as negatives: a text file or a table."),
]
NumNegatives = Annotated[int, Option("--negatives", metavar="N", min=1, help="Negatives per pair.")]
MaxShare = Annotated[
    float,
    Option(
        "--max-share",
        metavar="SHARE",
        min=0.0,
        max=1.0,
        help="Highest score of a negative, as a share of the score of the query's document.",
    ),
]

# data prepare, tokenizer train
PreparedText = Annotated[
    Path | None,
    Option(
        "--text",
        "--dataset",
        metavar="PATH|NAME",
        help="Text to use instead of the run's; sets dataset.path or dataset.name.",
    ),
]
PreparingTokenizer = Annotated[
    Path | None,
    Option(
        "--tokenizer", metavar="PATH|NAME", help="Tokenizer to use; sets tokenizer.path or tokenizer.name."
    ),
]
RowLength = Annotated[
    int | None,
    Option(
        "--max-length",
        metavar="TOKENS",
        min=3,
        help="Maximum length of a row in tokens; sets dataset.max_seq_length.",
    ),
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
PartOfText = Annotated[
    str | None,
    Option("--part", metavar="K/N", help="Prepare only part K of N, in a subfolder of --output."),
]
PartsFolder = Annotated[Path, Argument(metavar="DIR", help="Folder that contains all parts.")]
TokenizerFolder = Annotated[
    Path, Option("--output", "-o", metavar="DIR", help="Output folder, empty or new.")
]
