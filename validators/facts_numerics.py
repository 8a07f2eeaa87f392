"""Facts of the numerics of a training step: attention between documents, accuracy and device speed.

A measurement is None if it was not taken on that path. Infinite or NaN values are recorded as 1e30.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from validators.facts_rehearsal import AnswerFacts

ProbeName = Literal["isolation", "padding", "direction", "parity", "rotation", "repeats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationFacts:
    """Effects of perturbing one segment, or the padding, on other segments.

    Attributes:
        observed: description of the outputs that were compared bit by bit.
        victims: number of perturbed segments.
        responding: number of them whose own outputs changed; the other ones are inconclusive.
        leaked_tokens: number of tokens of other segments that changed, summed over all perturbed segments.
        largest_cross_gradient: gradient of the other segments' loss at a perturbed segment's embeddings.
        smallest_own_gradient: gradient of the other segments' loss at their own embeddings; if it is 0, the
            cross gradient is inconclusive.
        unstable: largest difference between two identical passes.
    """

    observed: str
    victims: int
    responding: int
    leaked_tokens: int
    largest_leak: float
    largest_cross_gradient: float
    smallest_own_gradient: float
    unstable: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionFacts:
    """Number of documents whose first token reacted to a late change, or whose last token to an early one."""

    documents: int
    early_moved: int
    late_moved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityFacts:
    """Errors against fp64 per document, divided by errors of the same formulas in the run's precision.

    The forward ratios are None for a compiled path, which returns no logits.
    """

    is_finite: bool
    forward_max_ratio: float | None
    forward_mean_ratio: float | None
    backward_max_ratio: float
    backward_mean_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationFacts:
    """Rotary positions that the path used; `misplaced` tokens were rotated by a wrong position."""

    max_position: int
    misplaced: int
    largest_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatFacts:
    """Differences between two identical steps. `gradient_moved` is relative to the largest entry.

    Attributes:
        moved: names of parameters whose gradients differ; empty in older recordings. `tensors_moved` is their
            number.
    """

    loss_moved: float
    tensors_moved: int
    gradient_moved: float
    moved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFacts:
    """Measurements of each numerics probe; None for a probe that did not run."""

    isolation: IsolationFacts | None = None
    padding: IsolationFacts | None = None
    direction: DirectionFacts | None = None
    parity: ParityFacts | None = None
    rotation: RotationFacts | None = None
    repeats: RepeatFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantFacts:
    """A planted fault, and the measurements of the probe that must detect it."""

    name: str
    probe: ProbeName
    probes: ProbeFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFacts:
    """Probe results for one implementation of the forward and backward pass, called a path.

    Attributes:
        attention: resolved attention kernel.
        dispatched: attention kernel that reported that it ran.
        is_resolved: whether the run uses these kernels.
        declared: attention direction that the model declares.
        error: exception that stopped the probes; empty if none did.
        durations_s: seconds of each phase: model, first step (which compiles kernels), golden, each probe,
            mutants; `process` is the total of a path that ran in its own process.
    """

    kernels: str
    attention: str
    is_compiled: bool
    is_resolved: bool
    dispatched: str
    declared: Literal["bidirectional", "causal"]
    probes: ProbeFacts
    mutants: tuple[MutantFacts, ...]
    long_length: int
    is_long_finite: bool | None
    error: str
    durations_s: dict[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name of the path: kernels, attention kernel, and whether it is compiled."""
        return f"{self.kernels}, {self.attention}{', compiled' if self.is_compiled else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericsFacts:
    """Results of the numerics probes on every path, for one microbatch of representative document lengths.

    Attributes:
        is_full: whether every installed backend was probed, not only the resolved one.
        uniform_loss: logarithm of the vocabulary size, the loss of an untrained model.
        unavailable: backends that cannot run here, each with the reason.
        attention: attention kernel of a model that has no paths, and `answers` of its probes, see
            `AnswerFacts`; empty for NeoBERT, whose paths are probed one by one.
    """

    device: str
    torch: str
    is_full: bool
    dtype: str
    vocab_size: int
    num_tokens: int
    segment_lengths: tuple[int, ...]
    uniform_loss: float
    initial_loss: float
    paths: tuple[PathFacts, ...]
    unavailable: dict[str, str]
    attention: str = ""
    answers: tuple[AnswerFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Results of known matrix products on one GPU, and the speed of bf16 products and of copies.

    Attributes:
        gemm_flops: under sustained load, at the power limit if the device reaches it.
        burst_flops: best of several short bursts from idle, before that limit; None in older recordings.
    """

    index: int
    name: str
    answers: int
    wrong_answers: int
    gemm_flops: float
    burst_flops: float | None = None
    copy_bytes_per_s: float
    host_bytes_per_s: float
