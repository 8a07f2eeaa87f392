"""Interfaces of plug-ins. A function or class of these forms is enough: nothing has to be imported.

Shapes: T tokens of a document, V vocabulary size, M labelled texts or words, L outputs of the head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class MaskingContext:
    """Vocabulary and masking rate of a run, for a masking function.

    Attributes:
        mask_id: id of the mask token.
        random_ids: int64 [n], ids of the tokens that are neither special nor unused.
        probability: expected share of targets (datacollator.mlm_probability; in evaluations
            datacollator.mlm_probability_eval); memory is planned for this share.
        texts: the tokens of the vocabulary by id, as it spells them, such as `##ing`.
    """

    mask_id: int
    random_ids: NDArray[np.int64]
    probability: float
    texts: Sequence[str]


class Masking(Protocol):
    """Function that masks a document."""

    def __call__(
        self,
        ids: NDArray[np.int64],
        special: NDArray[np.bool_],
        rng: np.random.Generator,
        context: MaskingContext,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return inputs and labels of a document, both int64 [T]; labels are -100 except at targets.

        Args:
            ids: int64 [T], the tokens.
            special: bool [T], True for tokens that must not be masked, such as [CLS].
            rng: random numbers that depend on the seed, the epoch and the document alone. Use no other
                randomness: a resumed run has to make the same targets.
        """


class Metric(Protocol):
    """Function that scores the predictions of an evaluation."""

    def __call__(
        self, predictions: NDArray[np.float32], labels: NDArray[np.int64] | NDArray[np.float32]
    ) -> Mapping[str, float]:
        """Return values by name; the name `cost` is reported as `eval/cost`.

        Args:
            predictions: float32 [M, L], the logits of all texts or words; [M], the scores of a regression.
            labels: int64 [M], classes; float32 [M], scores. The order follows the evaluation text, and
                depends on the number of ranks.
        """


@runtime_checkable
class Hook(Protocol):
    """Object that is notified in the first process of a run. Every method is optional.

    A hook that changes its attributes has `state_dict` and `load_state_dict`: checkpoints keep the state.
    """

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Receive a line of metrics.jsonl, every `trainer.logging_steps` steps, after it was written."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Receive the metrics of an evaluation, eval/*, after they were written."""

    def on_checkpoint(self, step: int, folder: str) -> None:
        """Receive the step and the folder of a checkpoint that is complete. It must not change the state."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state as JSON-serializable values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""


class Dataset(Protocol):
    """Function from the name of a split to its rows, for the key `plugins.dataset`."""

    def __call__(self, split: str) -> Sequence[Mapping[str, Any]] | None:
        """Return the rows of split `train` or `validation`, or None if the dataset has no such split.

        Rows have the task's columns. Their number and content are the same at every call, in every process.
        """


class Loss(Protocol):
    """Function from logits and labels to the loss of each label."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each label, float [M]. The run adds them up and divides by their number.

        Args:
            logits: float32 [M, L], of the labelled texts or words only; [M], the scores of a regression.
            labels: int64 [M], classes; float32 [M], scores.
        """


HookFactory = Callable[[], Hook]
