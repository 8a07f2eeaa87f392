"""Base class of predictors, one for each kind of model.

Shapes: K texts of a packed row, T tokens, L labels, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from neobert.encoding.counts import TextCounts
from neobert.encoding.encoder import TEXTS_PER_CHUNK, TOKENS_PER_RUN
from neobert.encoding.finite import non_finite_error
from neobert.encoding.freed_memory import return_freed_memory
from neobert.encoding.model import InferenceModel
from neobert.encoding.packed_rows import PackedRow, Tokens, group_into_rows, pack
from neobert.encoding.tokens import TextTokenizer
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.prediction.inputs import Item
from neobert.prediction.kinds import Prediction
from neobert.prediction.model import HeadModel, load_head_model
from neobert.progress import OnProgress
from neobert.runfiles.model_folder import CODE

Model = TypeVar("Model", HeadModel, InferenceModel)


class Scorer(Protocol):
    """Interface of a counter of predictions for labelled rows, which reports their scores."""

    def add(self, item: Item, label: Any, prediction: Prediction, location: str) -> None:
        """Count a row. Raises `ProjectError` for a label that does not belong to its texts."""

    def report(self) -> dict[str, Any]:
        """Return the scores by name for the report; empty if the rows have no labels."""


class Predictor(ABC, Generic[Model]):
    """A model with its tokenizer, which predicts for texts.

    Attributes:
        folder: the model folder.
        counts: texts and tokens so far, and those lost to the length limit.
        every_class: whether to add the probability of each class, where a text has a class.
        names: names of the fields of an item's texts.
    """

    def __init__(self, model: Model, tokenizer: TextTokenizer, folder: Path) -> None:
        self.model: Model = model
        self.tokenizer, self.folder = tokenizer, str(folder)
        self.counts = TextCounts()
        self.every_class = False
        self.names: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of texts or words, in their order; empty if the task has none."""
        return ()

    @property
    def settings(self) -> dict[str, Any]:
        """Length limit, device and kernels, for reports."""
        return {
            "max_length": self.tokenizer.max_length,
            "device": str(self.model.device),
            "kernels": self.model.kernels,
        }

    def second_text_starts(self, seconds: Sequence[int], indices: Sequence[int]) -> list[int] | None:
        """Return where the second texts at `indices` begin; None if both texts have one token type."""
        return [seconds[index] for index in indices] if self.tokenizer.bundle.types_pairs else None

    def predict(self, items: Sequence[Item], on_progress: OnProgress) -> list[Prediction]:
        """Return the predictions of items, in their order. Raises `ProjectError` for NaN or infinite outputs.

        Items are tokenized, and sorted by length, in chunks.
        """
        chunks = (items[start : start + TEXTS_PER_CHUNK] for start in range(0, len(items), TEXTS_PER_CHUNK))
        return [prediction for chunk in chunks for prediction in self._predict(chunk, on_progress)]

    @abstractmethod
    def _predict(self, items: Sequence[Item], on_progress: OnProgress) -> list[Prediction]:
        """Return the predictions of one chunk of items, in their order; report progress to `on_progress`."""

    def _compute_in_runs(
        self,
        sequences: Sequence[Tokens],
        compute: Callable[[PackedRow, list[int]], Tensor],
        on_progress: OnProgress,
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Yield the indices of each packed row's sequences, and `compute(packed, indices)` on the CPU.

        Raises `ProjectError` for NaN or infinite values.
        """
        device, filler = self.model.device, self.tokenizer.bundle.filler_id
        for order in group_into_rows([len(each) for each in sequences], TOKENS_PER_RUN[device.type]):
            indices: list[int] = order.tolist()
            packed = pack([sequences[index] for index in indices], filler, self.model.length_multiple).to(
                device
            )
            values = compute(packed, indices).cpu()
            if not bool(values.isfinite().all()):
                raise non_finite_error("the model's outputs are NaN or infinite", self.folder)
            yield indices, values
            on_progress(len(indices))
            return_freed_memory(device)


def length_limit(requested: int | None, positions: int, folder: Path) -> int:
    """Return the requested length limit, or `positions` if it is None.

    Raises `ProjectError` if the requested limit exceeds `positions`.
    """
    if requested is not None and requested > positions:
        message = f"max_length {requested} exceeds the {positions} positions of the model"
        raise ProjectError(CODE, message, f"set max_length to {positions} or less", str(folder), EXIT_USAGE)
    return requested or positions


class HeadPredictor(Predictor[HeadModel]):
    """A predictor that uses a model with a head.

    Attributes:
        auto_class: the transformers class that loads the model.
    """

    auto_class: ClassVar[str]

    @classmethod
    @abstractmethod
    def scorer(cls, classes: Sequence[str], names: Sequence[str]) -> Scorer:
        """Return an empty scorer for the `classes` and field `names` of a predictor."""

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype, max_length: int | None) -> Self:
        """Load model and tokenizer from a folder. Raises `ProjectError` for an unusable one.

        `max_length`: maximum tokens of a text; None: the maximum of the model.
        """
        model = load_head_model(folder, cls.auto_class, device, dtype)
        length = length_limit(max_length, model.max_length, folder)
        return cls(model, TextTokenizer.load(folder, length, model.settings.vocab_size), folder)
