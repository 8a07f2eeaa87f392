"""Interface between a task and the training loop: data, objective, evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from neobert.config.schedules import Moment
from neobert.data.batches.windows import Cursor
from neobert.export import write_hf_folder
from neobert.export.weights import load_weights
from neobert.objectives import Objective
from neobert.parallel import World
from neobert.training.state.train_state import Progress
from neobert.training.telemetry.stopwatch import Stopwatch


class Batch(Protocol):
    """Interface of a microbatch: the task's tensors, counts on the host, and the time to build it."""

    @property
    def num_tokens(self) -> int:
        """Tokens, padding excluded."""

    @property
    def num_targets(self) -> int:
        """Positions that are predicted; may be zero."""

    @property
    def cursor(self) -> Cursor:
        """Position in the data after this round of all ranks."""

    @property
    def collate_ms(self) -> float:
        """Milliseconds that a loader thread took to build the microbatch."""


class Batches(Protocol):
    """The endless microbatches of one rank."""

    def __next__(self) -> Any:
        """Return the next one."""

    def close(self) -> None:
        """End the prefetch threads."""


class Metrics(Protocol):
    """Interface of the metrics of one evaluation, which may keep sums or all predictions."""

    def add(self, score: Any, batch: Any) -> None:
        """Add what `Objective.evaluate` returned for a microbatch."""

    def values(self, world: World) -> dict[str, float | None]:
        """Return the metrics over all ranks, equal on each rank; None without any target."""


class StepServices(Protocol):
    """Services of the trainer that forward and backward use.

    Attributes:
        module: the task's objective as returned by `World.prepare`.
    """

    world: World
    task: Task
    module: nn.Module
    stopwatch: Stopwatch


class WorstCase(Protocol):
    """Maker of a microbatch with the most targets."""

    def __call__(self, batch: Any, *, is_training: bool) -> Any:
        """Return a microbatch full of text with the most targets that training or an evaluation may have."""


Step = Callable[[StepServices, Sequence[Any], int], Tensor]


class Answer(NamedTuple):
    """Result of a test with a known answer. A rule holds the limit of each kind.

    Attributes:
        subject: what was changed or planted, for reports.
        kind: meaning of `value`.
            `different`: relative change of the loss, which must change.
            `same`: change of the loss, which must not change, relative to a change that must occur.
            `close`: relative difference of outputs that may differ by rounding only.
            `learned`: share by which the loss of correct labels is below that of wrong ones, on new examples.
    """

    subject: str
    kind: Literal["different", "same", "close", "learned"]
    value: float


class Examiner(Protocol):
    """Interface to a trained task under test. All ranks call the same methods."""

    def loss(self, batch: Any) -> float:
        """Return the loss of a microbatch of all ranks, with the same dropout in every call."""

    def score(self, batch: Any) -> Any:
        """Return what `Objective.evaluate` returns for a microbatch."""

    def train(self, batch: Any) -> None:
        """Train a few steps on one microbatch at the peak learning rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task, built for one rank.

    Attributes:
        model: the module that checkpoints hold.
        objective: model and loss.
        batches: the training microbatches from a cursor on; the second argument yields the step of each.
        evaluation: the evaluation's microbatches, in a fixed order with fixed targets; None without any.
        metrics: returns empty metrics for one evaluation.
        inputs: a microbatch as the objective's arguments, on a device.
        worst_case: gives a microbatch full of text the most targets.
        probe: tests the trained task against known answers, on a microbatch of `worst_case`. It may train,
            because nothing runs after it.
        describe: returns strings and arrays that identify a microbatch's samples.
        flops: FLOPs of a microbatch, forward and backward, without padding.
        epoch: passes over the data so far.
        tokenizer_files: the tokenizer's files by name, which every checkpoint keeps; None for none.
        identity: digests that a resumed run must share, by name.
        attention_kernel: kernel that was resolved for this device.
        microbatches_per_epoch: counts the microbatches of an epoch, over all ranks; None for a stream.
        num_classes: number of classes of a target; 1 if the target is a number.
        targets_per_token: expected share of tokens that are targets; a long text without any fails the run.
        step: forward and backward of a step's microbatches; returns the loss of all ranks, summed over their
            targets. None: `loop.accumulate`, one microbatch after the other.
        read_retries: retried reads of the text so far; None if nothing is streamed.
        overlaps_exchange: whether ranks exchange gradients during the backward pass, and not after it.
    """

    model: PreTrainedModel
    objective: Objective
    batches: Callable[[Cursor, Iterator[Moment]], Batches]
    evaluation: Callable[[], Iterable[Any]] | None
    metrics: Callable[[], Metrics]
    inputs: Callable[[Any, torch.device], dict[str, Any]]
    worst_case: WorstCase
    probe: Callable[[Examiner, Any], Iterator[Answer]]
    describe: Callable[[Any], dict[str, Any]]
    flops: Callable[[Any], int]
    epoch: Callable[[Progress], float]
    microbatches_per_epoch: Callable[[], int | None]
    tokenizer_files: Mapping[str, bytes] | None
    identity: Mapping[str, str]
    attention_kernel: str
    num_classes: int
    targets_per_token: float
    step: Step | None = None
    read_retries: Callable[[], int | None] = lambda: None
    overlaps_exchange: bool = True

    @property
    def attention_ran(self) -> Mapping[int, str]:
        """The attention kernel that each block ran in training, by block number; filled during training."""
        return self.objective.attention_ran

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the files of a checkpoint that transformers loads; `weights` are whole tensors by name."""
        write_hf_folder(self.model, self.tokenizer_files, folder, weights)

    def load(self, path: Path) -> None:
        """Read the weights of a checkpoint of this task. Raises `ProjectError` if they do not fit."""
        load_weights(self.model, path)
