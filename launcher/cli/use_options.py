"""Options of the commands that use a checkpoint, with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from launcher.cli.completion import export_formats

# export
ExportSource = Annotated[
    Path,
    Argument(
        metavar="SOURCE",
        help="Run directory (its best checkpoint, else the newest), checkpoint, or folder of weights.",
    ),
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

ExportDtype = Annotated[
    Literal["fp32", "bf16"],
    Option("--dtype", help="Dtype of the weights. bf16 halves their size (format hf only)."),
]
ExportResults = Annotated[
    list[Path] | None,
    Option(
        "--results", metavar="FILE", help="Result file of `evaluate` to add to the model card. Repeatable."
    ),
]

# encode
ModelFolder = Annotated[
    Path,
    Argument(
        metavar="FOLDER",
        help="Exported folder, checkpoint, or run directory (its best checkpoint, else the newest).",
    ),
]
_FILES = "Text file (one text per line), .jsonl, .csv, .tsv or .parquet, a dataset folder"
TextsPath = Annotated[Path, Argument(metavar="TEXTS", help=f"{_FILES}, or the name of a Hub dataset.")]
Texts = Annotated[
    str,  # a Path would change the text: `//` becomes `/`
    Argument(
        metavar="TEXTS",
        help=f"{_FILES}, the name of a Hub dataset, one text in quotes, or - for lines of standard input.",
    ),
]
EmbeddingsFile = Annotated[
    Path | None,
    Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Output file, .npy, .parquet or .jsonl; rows in input order. Default: JSON lines on standard "
        "output.",
    ),
]
Column = Annotated[
    str | None, Option("--column", metavar="NAME", help="Text column. Default: text, sentence or content.")
]
TrainedColumn = Annotated[
    str | None,
    Option(
        "--column",
        metavar="NAME",
        help="Text column. Default: the training column, else text, sentence or content.",
    ),
]
Split = Annotated[str, Option("--split", metavar="NAME", help="Split of a folder or a Hub dataset.")]
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
        metavar="TOKENS",
        min=3,
        help="Maximum length of a text; longer texts are truncated and counted.",
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
        help="Texts between saves; a killed job loses at most this many.",
    ),
]

IndexFolder = Annotated[
    Path | None,
    Option(
        "--index",
        metavar="DIR",
        help="New folder for an index for `search`, of passages of at most 512 tokens, or --max-length.",
    ),
]
Prompt = Annotated[
    str | None,
    Option(
        "--prompt",
        metavar="NAME",
        help="Name of the model's prompt to prepend to each text. Default: the model's own.",
    ),
]
PromptText = Annotated[
    str | None,
    Option(
        "--prompt-text",
        metavar="TEXT",
        help="Prompt to prepend to each text; an empty text disables the prompt.",
    ),
]

# search
SearchedIndex = Annotated[Path, Argument(metavar="DIR", help="Folder written by `encode --index`.")]
Query = Annotated[
    str, Argument(metavar="QUERY", help="Text to search for, or - for lines of standard input.")
]
Top = Annotated[int, Option("--top", metavar="N", min=1, help="Number of texts to print per query.")]
IndexModel = Annotated[
    Path | None,
    Option("--model", metavar="FOLDER", help="Folder of the index's model, if it was moved."),
]

# predict
Rows = Annotated[
    str,
    Argument(
        metavar="TEXTS",
        help="Table (.csv, .tsv, .jsonl or .parquet), text file (one text per line), a folder of "
        "save_to_disk, one text in quotes, or - for lines of standard input.",
    ),
]
PredictionsFile = Annotated[
    Path | None,
    Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Output file, .csv, .tsv, .jsonl or .parquet; rows in input order. Default: JSON lines on "
        "standard output.",
    ),
]
PairColumn = Annotated[
    str | None, Option("--pair-column", metavar="NAME", help="Column of the second text of a pair.")
]
EveryClass = Annotated[bool, Option("--every-class", help="Add the probability of each class.")]

# evaluate
BlimpData = Annotated[
    Path,
    Argument(
        metavar="DATA",
        help="Sentence pairs: a .jsonl or .parquet file, or a folder with one file per paradigm.",
    ),
]
BeirData = Annotated[
    Path, Argument(metavar="DATA", help="Folder with corpus.jsonl, queries.jsonl and qrels.tsv.")
]
ScoredPairs = Annotated[
    Path,
    Argument(metavar="DATA", help="Table of pairs of texts with a score (.csv, .tsv, .jsonl, .parquet)."),
]
ScoreColumn = Annotated[
    str | None,
    Option("--score-column", metavar="NAME", help="Column of the scores. Default: score, similarity, ..."),
]
GlueData = Annotated[
    Path,
    Argument(metavar="DATA", help="Folder with one subfolder per task, or the name of a Hub dataset."),
]
PasskeyLengths = Annotated[
    str, Option("--lengths", metavar="TOKENS", help="Lengths of the documents: 512,1k,4k (1k is 1,024).")
]
PasskeyTrials = Annotated[
    int, Option("--trials", metavar="N", min=1, help="Number of documents of each length and depth.")
]
PasskeySeed = Annotated[int, Option("--seed", metavar="N", help="Seed of the documents.")]
PasskeyLeast = Annotated[
    float | None,
    Option(
        "--at-least",
        metavar="PERCENT",
        min=0,
        max=100,
        help="Exit with 1 if any length is below this accuracy.",
    ),
]
GlueFolder = Annotated[
    Path,
    Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for runs and results; the same folder resumes a stopped evaluation.",
    ),
]
EvaluationFolder = Annotated[
    Path | None,
    Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for results; the same folder resumes a stopped evaluation. Default: printed only.",
    ),
]
GlueTasks = Annotated[
    str | None,
    Option("--tasks", metavar="NAMES", help="Comma-separated tasks, glue or superglue. Default: glue."),
]
Seeds = Annotated[int, Option("--seeds", metavar="N", min=1, help="Runs per task, with seeds from 0.")]
Transfer = Annotated[
    bool,
    Option(
        "--transfer",
        help="Start a task from the best checkpoint of its source task (rte from mnli) if both are run.",
    ),
]
RandomWeights = Annotated[
    bool,
    Option("--random-weights", help="Train a model of the same shape from random weights, for comparison."),
]
KeepCheckpoints = Annotated[
    bool, Option("--keep-checkpoints", help="Keep the checkpoints of finished runs, not only their metrics.")
]
Device = Annotated[
    Literal["cpu", "cuda"] | None,
    Option("--device", help="Device to compute on. Default: cuda if a GPU is visible."),
]
PairsPerParadigm = Annotated[
    int | None,
    Option("--pairs-per-paradigm", metavar="N", min=1, help="Score only the first N pairs of each paradigm."),
]
Prompts = Annotated[Path, Argument(metavar="PROMPTS", help="File of prompts, .txt or .jsonl.")]
MaxTokens = Annotated[
    int, Option("--max-tokens", metavar="N", min=1, help="Maximum number of new tokens per prompt.")
]
QueryPrefix = Annotated[
    str | None,
    Option("--query-prefix", metavar="TEXT", help="Text before each query. Default: the model's prompt."),
]
DocumentPrefix = Annotated[
    str | None,
    Option(
        "--document-prefix", metavar="TEXT", help="Text before each document. Default: the model's prompt."
    ),
]
Benchmark = Annotated[
    str | None, Option("--benchmark", metavar="NAME", help="MTEB benchmark, e.g. 'MTEB(eng, v2)'.")
]
MtebTasks = Annotated[str | None, Option("--tasks", metavar="NAMES", help="Comma-separated MTEB tasks.")]
