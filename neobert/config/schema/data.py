"""The data: tokenizer, text, and how it becomes microbatches."""

# ruff: noqa: RUF009  (key() and section() build fields, which is what belongs in a class body)

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, Le, Lt

from neobert.config.schema.fields import (
    STRICT,
    NonEmpty,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    key,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """Where the tokenizer comes from. `path` beats `name`; with neither, one is trained from the corpus."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str | None = key(None, "Hub name of a tokenizer.", by_content=True)
    path: str | None = key(None, "Local folder or tokenizer.json.", is_path=True, by_content=True)
    revision: str | None = key(None, "Hub revision; production runs pin it.", by_content=True)
    trust_remote_code: bool = key(False, "Run code from the tokenizer's hub repository.", by_content=True)
    vocab_size: PositiveInt | None = key(
        None,
        "Size of the WordPiece vocabulary to train when neither name nor path is given.",
        by_content=True,
    )
    max_length: PositiveInt | None = key(None, "Longest sequence in tokens; null: dataset.max_seq_length.")
    allow_special_token_rewrite: bool = key(
        False, "Add mask, pad and sequence markers to a tokenizer that lacks them.", by_content=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureCorpus:
    """A corpus of a mixture: a path or a name, and its weight."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    weight: PositiveFloat = key(1.0, "Its share of the tokens, relative to the other corpora's weights.")
    path: str | None = key(None, "As dataset.path.", is_path=True)
    name: str | None = key(None, "As dataset.name.")
    config: str | None = key(None, "As dataset.config.")
    revision: str | None = key(None, "As dataset.revision.")
    train_split: str | None = key(None, "As dataset.train_split, which null takes.")
    text_column: str | None = key(None, "As dataset.text_column, which null takes.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConfig:
    """The text: a path, a `datasets` name, the corpus that every Python carries, or a mixture of these."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str | None = key(
        None,
        "A `datasets` name on the hub, or builtin:python-docs for CPython's own documentation.",
        replaces=("path", "mixture"),
    )
    config: str | None = key(None, "Configuration of the named data set.")
    revision: str | None = key(None, "Hub revision of the named data set; null: its newest.")
    path: str | None = key(
        None,
        "File or folder of text, JSON, CSV, TSV or parquet, or a saved `datasets` folder.",
        is_path=True,
        replaces=("name", "config", "mixture"),
        by_content=True,
    )
    mixture: tuple[MixtureCorpus, ...] = key(
        (),
        "Corpora that are trained on together, instead of path or name: a list of path or name, and weight. "
        "Each gets its weight's share of the tokens; one that ends is read again in another order.",
        replaces=("name", "config", "revision", "path"),
        by_content=True,
    )
    train_split: str = key("train", "Split to train on; slices such as train[:1%] are understood.")
    eval_split: str | None = key(
        None, "Split to evaluate on; null: validation, eval, test or dev where the data has one."
    )
    eval_samples: PositiveInt | None = key(
        None,
        "Without an evaluation split: documents at the head of the training split kept for evaluation.",
        replaces=("validation_split",),
    )
    validation_split: Annotated[float, Gt(0), Lt(1)] | None = key(
        None,
        "Without an evaluation split: share of the training documents kept for evaluation, chosen by a hash "
        "of their text.",
        replaces=("eval_samples",),
    )
    text_column: str | None = key(None, "Column that holds the text; null: text, sentence or content.")
    column_names: tuple[NonEmpty, ...] | None = key(
        None, "Columns of CSV and TSV files that have no header line; null: their first line names them."
    )
    tsv_quotes: bool = key(
        True, "Fields of TSV files may be quoted as in CSV; false: a quote is a character, as in GLUE."
    )
    max_seq_length: PositiveInt = key(1024, "Longest sequence in tokens, markers included.")
    min_length: PositiveInt = key(1, "Documents with fewer tokens than this, markers included, are left out.")
    long_documents: Literal["split", "truncate", "drop", "error"] = key(
        "split", "What happens to a document longer than the context; always counted and reported."
    )
    streaming: bool = key(False, "Tokenise while training instead of preparing a memory map first.")
    shuffle_buffer_size: NonNegativeInt = key(
        10_000, "Streaming: documents that are shuffled and packed together; 0 keeps the source's order."
    )
    streaming_read_retries: NonNegativeInt = key(
        4, "Streaming: attempts after a failed read.", affects="machine"
    )
    streaming_read_retry_backoff_seconds: PositiveFloat = key(
        5.0, "Streaming: first pause between attempts.", affects="machine"
    )
    streaming_read_retry_max_backoff_seconds: PositiveFloat = key(
        60.0, "Streaming: longest pause.", affects="machine"
    )
    num_proc: PositiveInt = key(1, "Processes that tokenise while preparing.", affects="machine")
    num_workers: NonNegativeInt = key(
        1, "Threads that build batches ahead; 0 builds them in the training loop.", affects="machine"
    )
    prefetch_factor: PositiveInt = key(4, "Microbatches that each thread keeps ready.", affects="machine")
    cache_dir: str | None = key(
        None,
        "Where prepared data is kept; null: $NEOBERT_CACHE, else neobert under the user's cache folder.",
        is_path=True,
        affects="machine",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCollatorConfig:
    """How documents become microbatches, and what is masked."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    mlm_probability: Annotated[float, Gt(0), Le(1)] = key(0.2, "Share of the tokens that are predicted.")
    mask_all: bool = key(False, "Replace every chosen token with the mask; false: 80/10/10.")
    pack_sequences: bool = key(
        True, "Pack documents into flat microbatches, isolated from each other; false: padded rows."
    )
    max_length: PositiveInt | None = key(None, "Longest sequence in tokens; null: dataset.max_seq_length.")
    pad_to_multiple_of: PositiveInt | None = key(None, "Padded rows only: round the row length up to this.")
