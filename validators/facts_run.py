"""Facts that a child process measures as the trainer would: imports, ranks and prepared data."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFacts:
    """Imports of the trainer's packages in a child process. `failed` maps a module to its import error.

    `kernel_error` is empty if a small matrix product was correct on every device of the run. `loaded`: digest
    of path, size and times of the imported files; empty in older recordings.
    """

    device: str
    num_devices: int
    cuda_version: str
    failed: dict[str, str]
    kernel_error: str
    loaded: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFailure:
    """Failed test of a plug-in: its config key, the problem and the fix."""

    key: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFacts:
    """Tests of the run's plug-ins in child processes.

    Attributes:
        failures: tests that failed.
        metrics: names of the metrics that plug-ins return, such as eval/cost.
        masked_share: share of the maskable tokens that masking selects; None without such a plug-in.
    """

    failures: tuple[PluginFailure, ...]
    metrics: tuple[str, ...] = ()
    masked_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """Identity of one rank, as the rank reported it: host, device, config, code and versions."""

    rank: int
    hostname: str
    device: str
    config_digest: str
    code_digest: str
    versions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFacts:
    """One collective with known values; `wrong_at` are the ranks that received a wrong result.

    `wrong_from` are the ranks whose contribution arrived wrong at another rank.
    """

    operation: str
    dtype: str
    num_elements: int
    wrong_at: tuple[int, ...]
    wrong_from: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFacts:
    """Digests of all parameters of a small model, one per rank, at one moment of the test."""

    moment: str
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFacts:
    """Loss and gradient norm of one global batch, over all ranks and on a single rank.

    A value is None if it is not finite.
    """

    distributed_loss: float | None
    single_loss: float | None
    distributed_grad_norm: float | None
    single_grad_norm: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedFacts:
    """Measurements of this node's ranks, started as the trainer would be.

    If ranks are absent, nothing after the check-in was measured and those fields are empty or None.

    Attributes:
        absent: ranks that did not check in within `patience_s`.
        drill_absent: ranks reported as absent in the drill, in which the last rank deliberately does not
            check in.
        drill_s: duration of that drill.
        bus_bytes_per_s: bus bandwidth of an all-reduce, in bytes/s.
        has_peer_access: whether all devices have peer-to-peer access to each other; None without CUDA.
        durations_s: seconds of each stage, on its slowest rank.
    """

    backend: str
    world_size: int
    patience_s: float
    absent: tuple[int, ...]
    ranks: tuple[RankFacts, ...]
    drill_absent: tuple[int, ...] = ()
    drill_s: float = 0.0
    collectives: tuple[CollectiveFacts, ...] = ()
    bus_bytes_per_s: float | None = None
    has_peer_access: bool | None = None
    parameters: tuple[ParameterFacts, ...] = ()
    loss: LossFacts | None = None
    durations_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationErrorFacts:
    """Error of data preparation; all fields are empty if there was none."""

    code: str = ""
    message: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFacts:
    """A corpus of a mixture.

    Attributes:
        share: share of the run's tokens.
        tokens: size of the corpus.
        epochs: number of passes over the corpus in the run.
    """

    label: str
    share: float
    tokens: int
    epochs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationFaultFacts:
    """Number of conversations in a split with one kind of `Fault`, and the first such conversation."""

    split: str
    kind: str
    count: int
    first: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFacts:
    """Prepared data, read completely, and the first microbatches of every rank.

    Attributes:
        fingerprint: digest of the content; for a stream, of the request.
        is_stream: whether the size is unknown; fields that depend on it are then None.
        altered_files: files that do not match their checksum in the manifest.
        tokenizer_digest: digest of the run's tokenizer. `data_tokenizer_digest`: digest of the tokenizer that
            prepared the data.
        max_token_id: largest id in the data, or in the sample of a stream.
        epochs: number of passes over the data in the run.
        microbatches: microbatches of one epoch over all ranks, if `trainer.max_epochs` is set and the text is
            not a stream; otherwise None.
        histogram: [longest length, documents] per bin, of whole documents before truncation.
        sampled_microbatches: number of inspected microbatches over all ranks.
        repeated_samples: samples read by several ranks, or twice by one.
        missing_samples: samples that a single process would read, but no rank did.
        empty_ranks: ranks without any tokens in their microbatches.
        masked_share: share of the maskable tokens that are masked.
        special_targets, padding_targets: tokens that are masked, but must not be.
        wrong_labels: masked tokens whose label is not the token of the text.
        labels, eval_labels: number of labelled texts or words by class; empty for tasks without classes.
        rows_without: labelled rows that are left out, by what they lack: text or label.
        first_row_without: location of the first such row in local files, if it is near their beginning.
        documents: training documents, with those that are left out.
        scores, eval_scores: mean, std, min and max of the scores of a regression; empty for other tasks.
        words, eval_words: labelled words: `total`, `without_token` and `cut` off; empty for other tasks.
        eval_documents: documents of the evaluation; `eval_copies` of them are in the training text too.
        weights_tokens: tokens in the tokenizer.json of the initial weights; 0 if there is none.
            `renumbered_tokens` of them have another id or none in the run's tokenizer.
        corpora: corpora of a mixture; empty for a single text.
        pairs: `per_step`: pairs of a step of all ranks, and `false_share`: share of the in-batch negatives
            of a pair that have its query or its document; `eval_shared`: share of the evaluation pairs
            with a text of the training pairs, and `source_shared`: of the training pairs with a text of
            another source, where they were counted; empty for other tasks.
        conversations: turns and tokens of the training text by what became of them (`Counts`); empty for
            other tasks. `num_conversations`: all that were read. `sample`: (text, is supervised)
            pieces of the first one.
        faults: faults of the supervised text.
        is_other_template: whether the initial weights' tokenizer has another chat template than the run.
        token_ids: `documents` of .ds files that were compared, how many of them the tokenizer `returned`, and
            how many are `marked` inside; empty for text.
    """

    folder: str
    fingerprint: str
    is_stream: bool
    altered_files: tuple[str, ...]
    tokenizer_digest: str
    data_tokenizer_digest: str
    vocab_size: int
    max_token_id: int
    num_tokens: int | None
    num_eval_tokens: int | None
    epochs: float | None
    fill: float | None
    truncation_share: float
    dropped_share: float
    histogram: tuple[tuple[int, int], ...]
    sampled_microbatches: int
    repeated_samples: int
    missing_samples: int
    empty_ranks: tuple[int, ...]
    num_maskable: int
    masked_share: float
    special_targets: int
    padding_targets: int
    wrong_labels: int
    labels: dict[str, int] = field(default_factory=dict)
    eval_labels: dict[str, int] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    eval_scores: dict[str, float] = field(default_factory=dict)
    words: dict[str, int] = field(default_factory=dict)
    eval_words: dict[str, int] = field(default_factory=dict)
    rows_without: dict[str, int] = field(default_factory=dict)
    first_row_without: dict[str, str] = field(default_factory=dict)
    documents: int = 0
    eval_documents: int = 0
    eval_copies: int = 0
    microbatches: int | None = None
    weights_tokens: int = 0
    renumbered_tokens: int = 0
    corpora: tuple[CorpusFacts, ...] = ()
    conversations: dict[str, int] = field(default_factory=dict)
    num_conversations: int = 0
    sample: tuple[tuple[str, bool], ...] = ()
    faults: tuple[ConversationFaultFacts, ...] = ()
    is_other_template: bool = False
    pairs: dict[str, float] = field(default_factory=dict)
    token_ids: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionFacts:
    """Data prepared as the trainer would: the error of the preparation, or its result."""

    refusal: PreparationErrorFacts
    prepared: PreparedFacts | None
