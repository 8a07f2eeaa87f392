"""Kinds of checkpoints, by their name in the manifest: how weights are copied, written and read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from neobert.export.weights import own_weights
from neobert.parallel import full_tensor
from neobert.runfiles.checkpoint.manifest import WHOLE
from neobert.runfiles.weights_header import WEIGHTS
from neobert.training.checkpoint.tensors import Layout, layout_of
from neobert.training.loop.task import Task


class Kind(Protocol):
    """Form of the weights of a checkpoint, in the host memory of ranks and on disk.

    Attributes:
        name: name in the manifest.
    """

    name: str

    def layout(self, model: nn.Module, *, is_main: bool) -> Layout:
        """Return the layout of `parts`, without communication."""

    def parts(self, model: nn.Module, *, is_main: bool) -> dict[str, Tensor]:
        """Return what this rank copies of the weights, by name. All ranks of a sharded run must call it."""

    def write(self, task: Task, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write rank 0's copies to a folder for `from_pretrained`, on the writer thread."""

    def read(self, task: Task, folder: Path) -> None:
        """Load the weights of a checkpoint folder into the model, which may be sharded, on every rank.

        Raises `ProjectError` if names or shapes do not match.
        """


class Whole:
    """Full weights, in the host memory of rank 0 and in model.safetensors."""

    name = WHOLE

    def layout(self, model: nn.Module, *, is_main: bool) -> Layout:
        """Return shape and dtype of each full weight on rank 0."""
        return layout_of(own_weights(model)) if is_main else {}

    def parts(self, model: nn.Module, *, is_main: bool) -> dict[str, Tensor]:
        """Gather each weight on every rank, and return them on rank 0."""
        weights = {name: full_tensor(each.detach()) for name, each in own_weights(model).items()}
        return weights if is_main else {}

    def write(self, task: Task, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the task's files with the weights."""
        task.save(folder, weights)

    def read(self, task: Task, folder: Path) -> None:
        """Read the full weights on every rank."""
        task.load(folder / WEIGHTS)


KINDS: dict[str, Kind] = {kind.name: kind for kind in (Whole(),)}
