"""Interface between a task (its data, objective and evaluation) and the training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from neobert.config.schema import RunConfig
from neobert.data.batches.windows import Cursor
from neobert.data.store.prepared_data import PreparedData
from neobert.export import write_hf_folder
from neobert.export.weights import load_weights
from neobert.families.backbone import Backbone
from neobert.objectives import Objective
from neobert.parallel import World
from neobert.runfiles.answer_kinds import AnswerKind
from neobert.runfiles.samples import Guess, MaskedText
from neobert.training.state.train_state import Progress
from neobert.training.telemetry.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class TaskInputs:
    """Config, data and model of one rank, from which a task is built.

    Attributes:
        backbone: the model, with its initial weights.
        on_progress: called on progress while waiting for data.
    """

    config: RunConfig
    prepared: PreparedData
    world: World
    backbone: Backbone
    on_progress: Callable[[], None] = lambda: None


class Batch(Protocol):
    """Interface of a microbatch as the training loop uses it; tasks add their tensors."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens without padding."""

    @property
    def num_targets(self) -> int:
        """Number of labels that enter the loss; may be zero."""

    @property
    def cursor(self) -> Cursor:
        """Position in the data after this microbatch of every rank."""

    @property
    def collate_ms(self) -> float:
        """Milliseconds that a loader thread took to build the microbatch."""

    def split_segments(self, length: int) -> Batch:
        """Return the microbatch with documents cut into segments of at most `length` tokens."""


class Batches(Protocol):
    """Endless iterator over the training microbatches of one rank."""

    def __next__(self) -> Any:
        """Return the next microbatch."""

    def close(self) -> None:
        """Stop the prefetch threads."""


class Metrics(Protocol):
    """Interface of a metrics accumulator for one evaluation."""

    def add(self, score: Any, batch: Any) -> None:
        """Add a microbatch and the result of `Objective.evaluate` for it."""

    def values(self, world: World) -> dict[str, float | None]:
        """Return the metrics over all ranks by name, equal on each rank. A metric without targets is None."""


class StepServices(Protocol):
    """Interface of the trainer attributes that forward and backward use.

    Attributes:
        module: the task's objective as returned by `World.prepare`.
    """

    world: World
    task: Task
    module: nn.Module
    stopwatch: Stopwatch


class WorstCase(Protocol):
    """Interface of a function that gives a microbatch the largest number of targets."""

    def __call__(self, batch: Any, *, is_training: bool) -> Any:
        """Return `batch`, which has no padding, with the maximum number of targets.

        `is_training`: use the maximum that occurs in training, else the maximum in an evaluation.
        """


Step = Callable[[StepServices, Sequence[Any], int], Tensor]


TINY = 1e-30
"""Smallest divisor of a relative result."""


class ProbeResult(NamedTuple):
    """Result of a probe of the trained task whose correct result is known. Rules define the limits.

    Attributes:
        subject: description of the tested property, for reports.
        kind: meaning of `value`, see `AnswerKind`.
    """

    subject: str
    kind: AnswerKind
    value: float


class TaskProber(Protocol):
    """Interface through which a probe evaluates and trains the task. All ranks call the same methods."""

    def loss(self, batch: Any) -> float:
        """Return the loss of a microbatch over all ranks, with the same dropout in every call."""

    def score(self, batch: Any) -> Any:
        """Return the result of `Objective.evaluate` for a microbatch."""

    def train(self, batch: Any) -> None:
        """Train a few steps on one microbatch at the peak learning rate."""


def no_probe_results(_prober: TaskProber, _batch: Any) -> Iterator[ProbeResult]:
    """Yield nothing, for a task without tests of its own."""
    yield from ()


class Guesser(Protocol):
    """Interface of a set of masked texts; the model guesses their masked words after each evaluation."""

    @property
    def texts(self) -> list[MaskedText]:
        """Return the texts, the same in all sessions of a run."""

    def guesses(self, backbone: Backbone, device: torch.device) -> list[list[Guess]]:
        """Return the best guesses of the model, in evaluation mode, for each text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task (model, objective, data, evaluation), built for one rank.

    Attributes:
        backbone: the model, whose weights checkpoints hold.
        objective: model and loss.
        batches: returns the training microbatches from a cursor on.
        evaluation: returns the evaluation microbatches, in fixed order with fixed targets, or None.
        metrics: returns an empty accumulator for one evaluation.
        inputs: converts a microbatch to keyword arguments of the objective, on a device.
        worst_case: gives a microbatch the largest number of targets, to measure peak memory.
        probe: the task's own known-answer tests, on a microbatch of `worst_case`, in addition to
            `neobert.rehearsal.answers`. It may train.
        describe: returns strings and arrays that identify a microbatch's samples.
        flops: returns the FLOPs of a microbatch, forward and backward, without padding.
        epoch: returns the number of passes over the data so far.
        tokenizer_files: content of the tokenizer's files by name, written to every checkpoint, or None.
        identity: digests by name that must be equal when a run is resumed.
        microbatches_per_epoch: returns the microbatches per epoch, over all ranks; None for a stream.
        num_classes: number of classes of a target; 1 for regression.
        num_evaluated: number of examples that are held out for the evaluation.
        targets_per_token: expected share of tokens that are targets; a long text without any fails the run.
        step: runs forward and backward over a step's microbatches; returns the loss of all ranks, summed over
            their targets. None: `steps.accumulate`, one microbatch after the other.
        reference_step: computes the same in one graph over all microbatches; the rehearsal compares `step`
            with it. None: the gradient of a step is the mean over the targets of its microbatches.
        logged_metrics: returns the task's own metrics over all ranks, for a line of training metrics.
        read_retries: returns the number of retried reads so far; None if nothing is streamed.
        guesser: masked texts whose words the model guesses after each evaluation, or None.
    """

    backbone: Backbone
    objective: Objective
    batches: Callable[[Cursor], Batches]
    evaluation: Callable[[], Iterable[Any]] | None
    metrics: Callable[[], Metrics]
    inputs: Callable[[Any, torch.device], dict[str, Any]]
    worst_case: WorstCase
    describe: Callable[[Any], dict[str, Any]]
    flops: Callable[[Any], int]
    epoch: Callable[[Progress], float]
    microbatches_per_epoch: Callable[[], int | None]
    tokenizer_files: Mapping[str, bytes] | None
    identity: Mapping[str, str]
    num_classes: int
    targets_per_token: float
    num_evaluated: int = 0
    probe: Callable[[TaskProber, Any], Iterator[ProbeResult]] = no_probe_results
    step: Step | None = None
    reference_step: Step | None = None
    logged_metrics: Callable[[World], Mapping[str, float]] = lambda _world: {}
    read_retries: Callable[[], int | None] = lambda: None
    guesser: Guesser | None = None

    @property
    def model(self) -> PreTrainedModel:
        """Module that checkpoints hold."""
        return self.backbone.model

    @property
    def attention_used(self) -> Mapping[int, str]:
        """Attention kernel that each transformer block used in training, by block number."""
        return self.objective.attention_used

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write a folder for `from_pretrained`. `weights` are full tensors by name, perhaps `LazyWeights`."""
        write_hf_folder(self.model, self.tokenizer_files, folder, weights)

    def load(self, folder: Path) -> None:
        """Load the weights of a checkpoint into the model, which may be sharded.

        Raises `ProjectError` if names or shapes do not match.
        """
        load_weights(self.model, folder)
