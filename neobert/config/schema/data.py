"""Config sections of the data: tokenizer, text, and packing or padding into microbatches."""

# ruff: noqa: RUF009  (key() and section() build fields, which is what belongs in a class body)

from dataclasses import dataclass
from typing import Annotated, Literal

from neobert.schema_fields import (
    ConfigSection,
    NonEmpty,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SequenceLength,
    gt,
    key,
    le,
    lt,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TokenizerConfig(ConfigSection):
    """Tokenizer source. `path` takes precedence over `name`.

    If both are null, `model.pretrained_checkpoint`'s tokenizer is used, or else one is trained on the text.
    """

    name: str | None = key(None, "Tokenizer on the Hugging Face Hub.", by_content=True)
    path: str | None = key(
        None,
        "Local folder or tokenizer.json; null: name, else the tokenizer of model.pretrained_checkpoint, "
        "else one is trained on the text.",
        is_path=True,
        by_content=True,
    )
    revision: str | None = key(None, "Hub revision; required in production.", by_content=True)
    trust_remote_code: bool = key(False, "Run code from the tokenizer's hub repository.", by_content=True)
    vocab_size: PositiveInt | None = key(
        None,
        "Vocabulary size of the tokenizer that is trained if neither name nor path is set; null: 30,522.",
        by_content=True,
    )
    algorithm: Literal["wordpiece", "bpe"] = key(
        "wordpiece",
        "Tokenizer to train: wordpiece as in BERT, or bpe, byte-level as in GPT-2 and ModernBERT.",
        by_content=True,
    )
    lowercase: bool = key(False, "Lower-case the text in a tokenizer that is trained.", by_content=True)
    strip_accents: bool = key(
        False,
        "Delete combining marks in a tokenizer that is trained: accents, and also vowel signs of Hindi and "
        "tones of Thai.",
        by_content=True,
    )
    max_length: SequenceLength | None = key(
        None, "Maximum sequence length in tokens; null: dataset.max_seq_length."
    )
    chat_template: NonEmpty | None = key(
        None,
        "File with the chat template (Jinja), or turns, a template for tokenizers that have none; null: the "
        "tokenizer's own.",
        is_path=True,
        words=("turns",),
        by_content=True,
    )
    allow_special_token_rewrite: bool = key(
        False,
        "Add missing special tokens ([PAD], [CLS], [SEP], [MASK]) and the template [CLS] text [SEP].",
        by_content=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MixtureCorpus(ConfigSection):
    """A corpus of a mixture: a path or a name, and its weight."""

    weight: PositiveFloat = key(1.0, "Share of the tokens, relative to the weights of the other corpora.")
    path: str | tuple[NonEmpty, ...] | None = key(None, "As dataset.path.", is_path=True)
    name: str | None = key(None, "As dataset.name.")
    config: str | None = key(None, "As dataset.config.")
    revision: str | None = key(None, "As dataset.revision.")
    train_split: str | None = key(None, "Training split of this corpus; null: dataset.train_split.")
    text_column: str | None = key(None, "Text column of this corpus; null: dataset.text_column.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DatasetConfig(ConfigSection):
    """Training text: a path, a `datasets` name, the documentation of CPython, or a mixture of these."""

    name: str | None = key(
        None,
        "Dataset on the Hugging Face Hub, or builtin:python-docs (the documentation of CPython), "
        "builtin:conversations (300 short conversations) or builtin:questions (149, with answers).",
        replaces=("path", "mixture", "train_split"),
    )
    config: str | None = key(None, "Configuration of the Hub dataset.")
    revision: str | None = key(None, "Revision of the Hub dataset; null: the newest.")
    path: str | tuple[NonEmpty, ...] | None = key(
        None,
        "File, folder or pattern (novels/*.txt) of text, Markdown, JSON, CSV, TSV or parquet, or a list of "
        "these; or a saved `datasets` folder; or joined parts of prepared data, also in an object store "
        "(s3://bucket/prepared).",
        is_path=True,
        replaces=("name", "config", "mixture", "train_split"),
        by_content=True,
    )
    mixture: tuple[MixtureCorpus, ...] = key(
        (),
        "Corpora to mix, instead of path or name: a list of entries with a weight and a path or "
        "name. Each provides its weight's share of the tokens; an exhausted corpus is repeated in "
        "another order.",
        replaces=("name", "config", "revision", "path", "train_split"),
        by_content=True,
    )
    train_split: str = key("train", "Training split; slices such as train[:1%] are supported.")
    eval_split: str | None = key(
        None, "Evaluation split; null: validation, eval, dev or test if the data has one."
    )
    eval_samples: PositiveInt | None = key(
        None,
        "Without an evaluation split: number of documents at the start of the training split to hold out.",
        replaces=("validation_split",),
    )
    validation_split: Annotated[float, gt(0), lt(1)] | None = key(
        None,
        "Without an evaluation split: fraction of the training documents to hold out, selected by a hash of "
        "their text.",
        replaces=("eval_samples",),
    )
    text_column: str | None = key(None, "Column that holds the text; null: text, sentence or content.")
    document_per_line: bool = key(
        False,
        "Each line of a text or Markdown file is a document; false: documents end at blank lines.",
    )
    column_names: tuple[NonEmpty, ...] | None = key(
        None,
        "Columns of CSV and TSV files without a header line, and of CoNLL files; null: the first line is the "
        "header, and lines of CoNLL files begin with the word and end with its label.",
    )
    tsv_quotes: bool = key(
        True,
        "Allow quoted fields in TSV files, as in CSV; false: quotes are ordinary characters, as in GLUE.",
    )
    max_seq_length: SequenceLength = key(1024, "Maximum sequence length in tokens, including special tokens.")
    min_length: PositiveInt = key(
        1, "Minimum document length in tokens, including special tokens; shorter documents are skipped."
    )
    long_documents: Literal["split", "truncate", "drop", "error"] = key(
        "split",
        "Handling of documents longer than max_seq_length; they are counted and reported. If unset, a text "
        "with a single label or vector is truncated.",
    )
    streaming: bool = key(False, "Tokenize during training instead of preparing a memory map first.")
    shuffle_buffer_size: NonNegativeInt = key(
        10_000, "Streaming: size of the shuffle buffer in documents; 0: keep the order of the source."
    )
    streaming_read_retries: NonNegativeInt = key(4, "Streaming: retries of a failed read.", affects="loading")
    streaming_read_retry_backoff_seconds: PositiveFloat = key(
        5.0, "Streaming: initial delay of the exponential backoff, in seconds.", affects="loading"
    )
    streaming_read_retry_max_backoff_seconds: PositiveFloat = key(
        60.0, "Streaming: maximum delay of the backoff, in seconds.", affects="loading"
    )
    num_proc: PositiveInt = key(1, "Number of processes for tokenization.", affects="loading")
    num_workers: NonNegativeInt = key(
        1, "Number of data loader threads; 0: load in the training loop.", affects="loading"
    )
    prefetch_factor: PositiveInt = key(
        4, "Microbatches prefetched per data loader thread.", affects="loading"
    )
    cache_dir: NonEmpty | None = key(
        None,
        "Folder for prepared data; null: $NEOBERT_CACHE, else neobert in the user's cache folder.",
        is_path=True,
        affects="loading",
    )
    cache_limit_gib: PositiveFloat | None = key(
        None,
        "Maximum size in GiB of the copies in cache_dir of prepared data from object stores; the least "
        "recently used are removed. Null: no limit.",
        affects="loading",
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DataCollatorConfig(ConfigSection):
    """Packing, padding and masking of microbatches."""

    mlm_probability: Annotated[float, gt(0), le(1)] = key(
        0.2, "Fraction of tokens that are masked and predicted."
    )
    mlm_probability_eval: Annotated[float, gt(0), le(1)] | None = key(
        None, "Masked fraction in evaluations; null: mlm_probability.", affects="cadence"
    )
    mask_all: bool = key(
        False, "Replace every selected token with the mask token; false: 80% mask, 10% random, 10% unchanged."
    )
    pack_sequences: bool = key(
        True,
        "Pack documents into microbatches without padding, with attention within documents; false: pad rows.",
    )
    max_length: SequenceLength | None = key(
        None, "Maximum sequence length in tokens; null: dataset.max_seq_length."
    )
    pad_to_multiple_of: PositiveInt | None = key(
        None, "Padded rows only: round the row length up to a multiple of this."
    )
