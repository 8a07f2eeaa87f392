"""Facts that a child found by doing what the trainer does: importing, meeting the ranks, reading the text."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFacts:
    """The trainer's packages, imported in a child. `failed` maps a module to what its import raised.

    `kernel_error` is empty where a small product on every device of the run came out right.
    """

    device: str
    num_devices: int
    cuda_version: str
    failed: dict[str, str]
    kernel_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """One rank of the run, as it described itself."""

    rank: int
    hostname: str
    device: str
    config_digest: str
    code_digest: str
    versions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFacts:
    """One collective with known values. `wrong_at`: ranks that got a wrong result.

    `wrong_from`: ranks whose part arrived wrong at another one.
    """

    operation: str
    dtype: str
    num_elements: int
    wrong_at: tuple[int, ...]
    wrong_from: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFacts:
    """Digests of all parameters of a small model, one a rank, at one moment of its life."""

    moment: str
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFacts:
    """One global batch through the run's objective: over all ranks, and by each rank alone.

    None where what came out is not a finite number.
    """

    distributed_loss: float | None
    single_loss: float | None
    distributed_grad_norm: float | None
    single_grad_norm: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedFacts:
    """The ranks of this node, started as the trainer would be.

    Where ranks are absent, nothing behind the roll call was measured and those fields are empty or None.

    Attributes:
        absent: ranks that did not answer the roll call within `patience_s`.
        drill_absent: ranks that the roll call named when the last one stayed away on purpose.
        drill_s: how long that took.
        bus_bytes_per_s: bytes of an all-reduce that crossed each link in a second.
        has_peer_access: whether every device reads every other one's memory; None off CUDA.
        durations_s: seconds of each stage, of the rank that took longest over it.
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
class RefusalFacts:
    """What the preparation of the text refused; an empty code where it refused nothing."""

    code: str = ""
    message: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFacts:
    """The prepared text, read through, and the first microbatches of every rank.

    Attributes:
        fingerprint: of the content; of a stream, of the request.
        is_stream: the text has no known end, and what needs one is None.
        altered_files: files that are no longer what the manifest says.
        tokenizer_digest: of the tokenizer that the run loads; `data_tokenizer_digest` of the data's.
        max_token_id: largest id in the text, or in the sample of a stream.
        epochs: how often the run reads the text.
        histogram: [longest length, documents] a bin, of whole documents before they are cut.
        sampled_microbatches: over all ranks.
        repeated_samples: samples that more than one rank got, or one rank twice.
        missing_samples: samples that one process alone would have seen and no rank got.
        empty_ranks: ranks without a microbatch that has tokens.
        masked_share: predicted tokens among those that may be masked.
        special_targets, padding_targets: tokens that are predicted and must not be.
        wrong_labels: predicted tokens whose label is not the text's own token.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionFacts:
    """The text, prepared as the trainer would: what that refused, else what it made."""

    refusal: RefusalFacts
    prepared: PreparedFacts | None
