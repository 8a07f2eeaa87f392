"""Accuracy of words, and precision, recall and F1 of entities.

Entities are counted as by conlleval and seqeval's default: an entity begins at B or S, and at I or E after O,
after the end of another entity, or if the type changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.objectives.labelled import Predictions
from neobert.parallel import World
from neobert.tasks.token_classification.spec import OUTSIDE, tags_entities

Entity = tuple[int, int, int]
"""First word, end (exclusive) and type of an entity, as numbers."""
Ids = NDArray[np.int64]


class TagScheme:
    """Prefix and type of each label of a run.

    Attributes:
        marks_entities: whether labels are BIO or BIOES tags.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.marks_entities = tags_entities(names)
        self._prefixes = np.array([name[0] for name in names])
        types = [name[2:] if name != OUTSIDE else "" for name in names]
        self._types = np.array([types.index(each) for each in types])

    def entities(self, labels: Ids, texts: Ids) -> set[Entity]:
        """Return the entities of words with these labels [N]; an entity does not span two texts [N]."""
        if not len(labels):
            return set()
        prefix, kind = self._prefixes[labels], self._types[labels]
        is_in = prefix != OUTSIDE
        begins = np.r_[True, texts[1:] != texts[:-1]]
        is_after = np.r_[False, is_in[:-1]] & ~begins
        closed = np.r_[False, np.isin(prefix[:-1], ("E", "S"))]
        changes = np.r_[True, kind[1:] != kind[:-1]]
        starts = is_in & (~is_after | closed | changes | np.isin(prefix, ("B", "S")))
        first = np.flatnonzero(starts)
        # An entity ends before the next one, and before a word outside of entities or of another text.
        stops = np.flatnonzero(np.r_[starts | ~is_in | begins, True])
        ends = stops[np.searchsorted(stops, first, side="right")]
        return set(zip(first.tolist(), ends.tolist(), kind[first].tolist(), strict=True))


class TagMetrics:
    """Sums over the words of an evaluation: loss, correct words, entities."""

    def __init__(self, device: torch.device, names: Sequence[str]) -> None:
        self._tagging = TagScheme(names)
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._words, self._right = 0, 0
        self._found, self._true, self._both = 0, 0, 0

    def add(self, score: Predictions, batch: Microbatch) -> None:
        """Add loss, correct words and entities of a microbatch."""
        self._loss_sum += score.loss_sum
        is_word = batch.labels.flatten() != IGNORED
        # Every segment and every row begins at position 0.
        text = (batch.position_ids.flatten() == 0).cumsum(0)[is_word].numpy()
        true = batch.labels.flatten()[is_word].numpy()
        guessed = score.logits.argmax(-1).flatten().cpu()[is_word].numpy()
        self._words += len(true)
        self._right += int((guessed == true).sum())
        if self._tagging.marks_entities:
            found, wanted = self._tagging.entities(guessed, text), self._tagging.entities(true, text)
            self._found += len(found)
            self._true += len(wanted)
            self._both += len(found & wanted)

    def values(self, world: World) -> dict[str, float | None]:
        """Return loss, accuracy and entity scores over all ranks; each is None if there are no words."""
        loss_sum = float(world.all_reduce_sum(self._loss_sum))
        counts = world.sum_over_ranks([self._words, self._right, self._found, self._true, self._both])
        words, right, found, true, both = counts
        values: dict[str, float | None] = {
            "eval/loss": loss_sum / words if words else None,
            "eval/accuracy": right / words if words else None,
        }
        if not self._tagging.marks_entities:
            return values
        measured = {"precision": share(both, found), "recall": share(both, true)}
        measured["f1"] = share(2 * both, found + true)
        return values | {f"eval/{name}": value if words else None for name, value in measured.items()}


def share(part: int, whole: int) -> float:
    """Return part / whole, or 0 if whole is 0, as seqeval does."""
    return part / whole if whole else 0.0
