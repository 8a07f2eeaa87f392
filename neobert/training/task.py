"""What a task brings to the loop: data, an objective, an evaluation. The loop knows nothing else of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from neobert.data.windows import Cursor
from neobert.training.progress import Progress


class Batch(Protocol):
    """A microbatch: whatever tensors the task gives it, its counts on the host, and the time to build it."""

    num_tokens: int
    num_targets: int
    cursor: Cursor
    collate_ms: float


class Batches(Protocol):
    """The microbatches of one rank, without end."""

    def __next__(self) -> Any:
        """Return the next one."""

    def close(self) -> None:
        """End the threads that build ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One kind of training.

    Attributes:
        model: what checkpoints hold.
        objective: module whose forward maps inputs to a summed loss, and whose `evaluate` adds hits.
        batches: the training microbatches from a cursor on.
        evaluation: the evaluation's microbatches, in a fixed order with fixed masks; None without any.
        inputs: a microbatch as the objective's arguments, on a device.
        describe: words and arrays that find a microbatch's samples again.
        flops: floating-point work of a microbatch, forward and backward, with no credit for padding.
        epoch: passes over the data so far.
        tokenizer_files: the tokenizer's files by name, which every checkpoint keeps; None for none.
        identity: digests that a resumed run must share, by name.
        attention_kernel: kernel that was resolved for this device.
        attention_ran: the kernel that each block ran in training, by its number; filled while it runs.
        read_retries: retried reads of the text so far; None where nothing is streamed.
        overlaps_exchange: whether ranks exchange gradients beside the backward pass, and not behind it.
    """

    model: nn.Module
    objective: nn.Module
    batches: Callable[[Cursor], Batches]
    evaluation: Callable[[], Iterable[Any]] | None
    inputs: Callable[[Any, torch.device], dict[str, Any]]
    describe: Callable[[Any], dict[str, Any]]
    flops: Callable[[Any], int]
    epoch: Callable[[Progress], float]
    tokenizer_files: Mapping[str, bytes] | None
    identity: Mapping[str, str]
    attention_kernel: str
    attention_ran: Mapping[int, str] = field(default_factory=dict)
    read_retries: Callable[[], int | None] = lambda: None
    overlaps_exchange: bool = True
