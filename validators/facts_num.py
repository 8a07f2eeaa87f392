"""Facts of the numbers that a training step makes: who hears of whom, how exactly, how fast the devices are.

A measurement is None where it was not taken on that path. Numbers that were infinite or none at all are 1e30.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

ProbeName = Literal["isolation", "padding", "direction", "parity", "rotation", "repeats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationFacts:
    """What disturbing one segment, or the padding, did elsewhere.

    Attributes:
        observed: what was compared bit by bit.
        responding: victims whose own outputs moved; the others were disturbed in vain.
        leaked_tokens: tokens of others that moved, over all victims.
        largest_cross_gradient: of the others' loss by a victim's embeddings.
        smallest_own_gradient: of the same loss by the others' own; 0 would make the line above worthless.
        unstable: what two identical passes differ by.
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
    """Documents in which the first token heard of a late change, and the last one of an early change."""

    documents: int
    early_moved: int
    late_moved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityFacts:
    """Errors against fp64, document by document, over those of plain formulas in the run's precision."""

    is_finite: bool
    forward_max_ratio: float | None
    forward_mean_ratio: float | None
    backward_max_ratio: float
    backward_mean_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationFacts:
    """The rotation that the path used. `misplaced`: tokens turned by another position than their own."""

    max_position: int
    misplaced: int
    largest_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatFacts:
    """What differs between two identical steps. `gradient_moved` is relative to the largest entry.

    Attributes:
        moved: the parameters whose gradients differ, `tensors_moved` of them; empty in older recordings.
    """

    loss_moved: float
    tensors_moved: int
    gradient_moved: float
    moved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFacts:
    """What each probe measured."""

    isolation: IsolationFacts | None = None
    padding: IsolationFacts | None = None
    direction: DirectionFacts | None = None
    parity: ParityFacts | None = None
    rotation: RotationFacts | None = None
    repeats: RepeatFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantFacts:
    """A planted fault, and what the probe that must see it measured."""

    name: str
    probe: ProbeName
    probes: ProbeFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFacts:
    """One way through forward and backward.

    Attributes:
        attention: the kernel that was resolved; `dispatched` the one that said it ran.
        is_resolved: the run takes these kernels.
        declared: what the model says of its direction.
        error: what stopped the probes; empty where nothing did.
        durations_s: seconds of each phase: model, first step (in which kernels are compiled), golden, each
            probe, mutants; `process` is all of a path that had a process of its own.
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
        """The path in a few words."""
        return f"{self.kernels}, {self.attention}{', compiled' if self.is_compiled else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericsFacts:
    """The suite: one microbatch of telling lengths over every path.

    Attributes:
        is_full: every installed backend was probed, not only the one that the run takes.
        uniform_loss: the logarithm of the vocabulary, what a model knows before it has learnt.
        unavailable: backends that cannot run here, and why.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Known answers and achieved rates of one device: dense bf16 products, copies in it and to it.

    Attributes:
        gemm_flops: while it is kept busy, at its power limit where it has come to that.
        burst_flops: of the best of some short bursts from idle, before the limit; None in older recordings.
    """

    index: int
    name: str
    answers: int
    wrong_answers: int
    gemm_flops: float
    burst_flops: float | None = None
    copy_bytes_per_s: float
    host_bytes_per_s: float
