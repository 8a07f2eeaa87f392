"""Pseudo-log-likelihoods of texts (Salazar et al., 2020): each token is masked alone and predicted.

The masked copies of a text are segments of packed rows. Special tokens are never masked, even if a text
contains their names.

Shapes: N texts, L tokens of a text, M of them masked in turn, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neobert.encoding.counts import TextCounts
from neobert.encoding.encoder import TOKENS_PER_RUN
from neobert.encoding.finite import require_finite
from neobert.encoding.model import InferenceModel
from neobert.encoding.packed_rows import Tokens, pack
from neobert.encoding.tokens import TextTokenizer
from neobert.progress import OnProgress, ignore_progress

Likelihoods = NDArray[np.float64]
LOGIT_ROWS = 1024
"""Number of masked positions whose logits are computed at once."""


class Scorer:
    """Scores texts with a masked language model.

    Attributes:
        folder: the model folder; empty for a model that was not loaded from one.
        counts: texts and tokens scored so far.
    """

    def __init__(
        self, model: InferenceModel, tokenizer: TextTokenizer, tokens_per_run: int | None, folder: str = ""
    ) -> None:
        self.model = model
        self.folder = folder
        self.tokenizer = tokenizer
        self.tokens_per_run = tokens_per_run or TOKENS_PER_RUN[model.device.type]
        self.counts = TextCounts()

    def score(self, texts: Sequence[str], on_progress: OnProgress = ignore_progress) -> Likelihoods:
        """Return [N, 2]: each text's sum of token log-probabilities in nats, and its number of scored tokens.

        Args:
            on_progress: called after each packed row with the number of texts that it completed.

        Raises `ProjectError` if a sum is NaN or infinite.
        """
        sequences, counts = self.tokenizer.tokenize(texts)
        self.counts.add(counts)
        sums = np.zeros((len(texts), 2))
        completed = 0
        for copies, texts_of, positions, targets in self._masked_runs(sequences):
            np.add.at(sums, (texts_of, 0), self._log_probabilities(copies, positions, targets))
            np.add.at(sums, (texts_of, 1), 1)
            begun = int(np.count_nonzero(sums[:, 1]))
            on_progress(begun - 1 - completed)  # the last text may continue in the next packed row
            completed = begun - 1
        on_progress(len(texts) - completed)
        require_finite(sums, "log-probabilities", self.folder)
        return sums

    def _masked_runs(
        self, sequences: Sequence[Tokens]
    ) -> Iterator[tuple[list[Tokens], list[int], list[int], list[int]]]:
        """Yield the masked copies of each row, and each copy's text index, masked position and token id."""
        copies: list[Tokens] = []
        texts_of: list[int] = []
        positions: list[int] = []
        targets: list[int] = []
        total = 0
        for text in sorted(range(len(sequences)), key=lambda index: -len(sequences[index])):
            tokens = sequences[text]
            for position in self._scored_positions(tokens):
                if copies and total + len(tokens) > self.tokens_per_run:
                    yield copies, texts_of, positions, targets
                    copies, texts_of, positions, targets, total = [], [], [], [], 0
                masked = tokens.copy()
                masked[position] = self.tokenizer.bundle.mask_id
                copies.append(masked)
                texts_of.append(text)
                positions.append(int(position))
                targets.append(int(tokens[position]))
                total += len(tokens)
        if copies:
            yield copies, texts_of, positions, targets

    def _scored_positions(self, tokens: Tokens) -> NDArray[np.int64]:
        """Return the positions to mask: tokens that are not special, and unknown tokens."""
        bundle = self.tokenizer.bundle
        is_scored = bundle.is_maskable[tokens] | (tokens == bundle.tokenizer.unk_token_id)
        framing = bundle.framing
        is_scored[: len(framing.start)] = is_scored[len(tokens) - len(framing.end) :] = False
        return np.flatnonzero(is_scored)

    @torch.no_grad()
    def _log_probabilities(
        self, copies: Sequence[Tokens], positions: Sequence[int], targets: Sequence[int]
    ) -> NDArray[np.float64]:
        packed = pack(copies, self.tokenizer.bundle.filler_id, self.model.length_multiple).to(
            self.model.device
        )
        rows = np.cumsum([0, *map(len, copies)], dtype=np.int64)[:-1] + np.array(positions, np.int64)
        return log_probabilities(
            self.model, self.model.hidden_states(packed), rows, np.array(targets, np.int64)
        )


def log_probabilities(
    model: InferenceModel, hidden: Tensor, rows: NDArray[np.int64], targets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the log-probabilities of tokens `targets` [M] at `rows` [M] of `hidden` [T tokens, D width]."""
    found = []
    chosen, wanted = (torch.from_numpy(each).to(hidden.device) for each in (rows, targets))
    for some, of in zip(chosen.split(LOGIT_ROWS), wanted.split(LOGIT_ROWS), strict=True):
        logits = model.logits(hidden[some]).to(torch.float32)
        found.append(logits.gather(1, of[:, None])[:, 0] - logits.logsumexp(-1))
    return torch.cat(found).double().cpu().numpy()
