"""Predictions of a masked-language model: the token at the mask of each text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from neobert.encoding.model import InferenceModel, load_model
from neobert.encoding.packed_rows import PackedRow, Tokens
from neobert.encoding.tokens import TextTokenizer
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.plurals import counted
from neobert.prediction.inputs import Item
from neobert.prediction.kinds import PREDICTION, PROBABILITY, Prediction
from neobert.prediction.predictor import Predictor, length_limit
from neobert.printable import printable
from neobert.progress import OnProgress


class MaskPredictor(Predictor[InferenceModel]):
    """Predicts the most probable token, with its probability, at the only mask of each text.

    `predict` raises `ProjectError` for a text without a mask, or with several, after truncation.
    """

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype, max_length: int | None) -> Self:
        """Load model and tokenizer from a folder.

        `max_length`: maximum tokens of a text; None: the maximum of the model. Raises `ProjectError` if the
        model has no vocabulary head, or the tokenizer no mask token.
        """
        model = load_model(folder, device, dtype, needs_decoder=True)
        length = length_limit(max_length, model.max_length, folder)
        tokenizer = TextTokenizer.load(folder, length, model.num_rows, roles=("mask_token",))
        return cls(model, tokenizer, folder)

    def _predict(self, items: Sequence[Item], on_progress: OnProgress) -> list[Prediction]:
        sequences, _, counts = self.tokenizer.tokenize_items(items)
        self.counts.add(counts)
        self._require_one_mask(sequences, items)
        found = torch.empty(len(items), 2, dtype=torch.float64)
        for indices, best in self._compute_in_runs(sequences, self._best_tokens, on_progress):
            found[indices] = best
        tokenizer = self.tokenizer.bundle.tokenizer
        return [
            {PREDICTION: tokenizer.decode([int(token)]).strip(), PROBABILITY: probability}
            for token, probability in found.tolist()
        ]

    def _best_tokens(self, packed: PackedRow, indices: list[int]) -> Tensor:
        """Return the best token and its probability at the mask of each text, [K, 2]."""
        is_mask = (packed.input_ids == self.tokenizer.bundle.mask_id).nonzero()[: len(indices), 0]
        logits = self.model.logits(self.model.hidden_states(packed)[is_mask]).double()
        best = logits.softmax(-1).max(-1)
        return torch.stack([best.indices.double(), best.values], dim=1)

    def _require_one_mask(self, sequences: Sequence[Tokens], items: Sequence[Item]) -> None:
        for ids, item in zip(sequences, items, strict=True):
            if (number := int(np.sum(ids == self.tokenizer.bundle.mask_id))) != 1:
                mask = self.tokenizer.bundle.tokenizer.mask_token
                message = f"a text has {counted(number, 'mask')}, expected one: {printable(item[0][:60])!r}"
                hint = f"write {mask} once into each text, within {self.tokenizer.max_length:,} tokens"
                raise ProjectError("predict-mask", message, hint, exit_code=EXIT_USAGE)


PREDICTOR = MaskPredictor
