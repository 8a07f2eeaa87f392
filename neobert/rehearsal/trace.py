"""Record of each step of a run, for comparison with the same steps after a resume."""

from __future__ import annotations

import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neobert.export.weights import unique_weights
from neobert.parallel import local_shard
from neobert.training.checkpoint.tensors import optimizer_tensors, random_state
from neobert.training.loop.task import Batches
from neobert.training.state.train_state import LossWindow
from neobert.training.state.trainer import Trainer


class HashedBatches:
    """Wrapper of a rank's microbatches that hashes their tokens, labels and sample ids while `is_on`."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self.is_on = False
        self._digest = sha256()

    def __next__(self) -> Any:
        batch = next(self._batches)
        if self.is_on:
            for tensor in (batch.input_ids, batch.labels, batch.sample_ids):
                self._digest.update(tensor.numpy().tobytes())
        return batch

    def close(self) -> None:
        """Stop the prefetch threads."""
        self._batches.close()

    def take(self) -> str:
        """Return the SHA-256 of the microbatches since the last call, and reset it."""
        digest, self._digest = self._digest.hexdigest(), sha256()
        return digest


class RecordingLossWindow(LossWindow):
    """Loss window that also keeps the loss of each step."""

    def __init__(self, window: LossWindow) -> None:
        super().__init__(window.loss_sum.device, window.loss_sum.item(), window.num_targets)
        self.steps: list[tuple[Tensor, int]] = []

    def add(self, loss_sum: Tensor, num_targets: int) -> None:
        """Add a step's loss, and keep a copy of it on the device."""
        super().add(loss_sum, num_targets)
        self.steps.append((loss_sum.clone(), num_targets))


class Trace:
    """Recorder of each step's learning rate, data position, loss, and digests of data and RNG state.

    Replaces the trainer's microbatches and loss window by recording ones. Losses are read from the device
    only at the end.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._batches = HashedBatches(trainer.batches)
        trainer.batches = self._batches
        self._loss = RecordingLossWindow(trainer.progress.loss)
        trainer.progress.loss = self._loss
        self._lines: list[dict[str, Any]] = []

    def start(self) -> None:
        """Start recording digests of microbatches and RNG state with the next step."""
        self._batches.is_on = True

    def record_step(self, trainer: Trainer) -> None:
        """Record the completed step."""
        draw_from_generators()
        self._lines.append(
            {
                "step": trainer.progress.step,
                "learning_rate": trainer.state.learning_rate,
                "schedule_position": trainer.scheduler.last_epoch,
                "cursor": trainer.progress.cursor.to_dict(),
                "tokens_total": trainer.progress.tokens_total,
                "batches": self._batches.take() if self._batches.is_on else "",
                "generators": sha256(random_state()).hexdigest() if self._batches.is_on else "",
            }
        )

    def lines(self) -> list[dict[str, Any]]:
        """Return one dict per recorded step, including its loss in nats per target."""
        pairs = zip(self._lines, self._loss.steps, strict=True)
        return [line | {"loss": loss.item() / max(1, count)} for line, (loss, count) in pairs]


def draw_from_generators() -> None:
    """Draw from every random generator, so that lost RNG state is detected in runs without dropout too."""
    random.random()
    np.random.random()
    torch.rand(1)
    if torch.cuda.is_available():
        torch.rand(1, device="cuda")


def state_digests(trainer: Trainer) -> dict[str, str]:
    """Return the SHA-256 of each weight and optimizer state by name, of this rank's shards."""
    model = trainer.task.model
    tensors: Mapping[str, Tensor] = {
        **{f"weights/{name}": each for name, each in unique_weights(model).items()},
        **{f"optimizer/{name}": each for name, each in optimizer_tensors(model, trainer.optimizer).items()},
    }
    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter's lock
        return dict(zip(tensors, pool.map(_tensor_digest, tensors.values()), strict=True))


def _tensor_digest(tensor: Tensor) -> str:
    part = local_shard(tensor.detach())
    digest = sha256(f"{tuple(part.shape)} {part.dtype}".encode())
    digest.update(part.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
