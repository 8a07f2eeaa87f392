"""Log-likelihoods of texts by a causal model: each token is predicted from the tokens before it.

A text follows the tokenizer's start tokens, or its end-of-text token if it has none, so that the first token
is predicted too. A text longer than the model's context is scored in windows that overlap by half.

Shapes: N texts, T tokens of a packed row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from neobert.encoding.counts import TextCounts
from neobert.encoding.encoder import TOKENS_PER_RUN
from neobert.encoding.finite import require_finite
from neobert.encoding.model import InferenceModel
from neobert.encoding.packed_rows import Tokens, pack
from neobert.encoding.tokens import TextTokenizer
from neobert.evaluation.likelihood.scorer import Likelihoods, log_probabilities
from neobert.progress import OnProgress, ignore_progress

WINDOW = 2048
"""Default length of a window in tokens: a model may have far more positions than fit in memory."""
UNLIMITED = 2**31
"""Length limit of the tokenizer: windows divide a longer text, and nothing is truncated."""


class Window(NamedTuple):
    """Tokens of text number `text` that are scored together; tokens before index `first` are only context."""

    text: int
    tokens: Tokens
    first: int


class NextTokenScorer:
    """Scores texts with a causal language model.

    Attributes:
        max_length: longest window in tokens.
        folder: the model folder; empty for a model that was not loaded from one.
        counts: texts and tokens scored so far.
    """

    def __init__(
        self,
        model: InferenceModel,
        tokenizer: TextTokenizer,
        max_length: int,
        tokens_per_run: int | None = None,
        folder: str = "",
    ) -> None:
        self.model, self.tokenizer, self.folder = model, tokenizer, folder
        self.max_length = max_length
        self.tokens_per_run = tokens_per_run or TOKENS_PER_RUN[model.device.type]
        self.counts = TextCounts()

    @classmethod
    def from_model(
        cls, model: InferenceModel, folder: Path, max_length: int, tokens_per_run: int | None
    ) -> NextTokenScorer:
        """Return the scorer of a loaded model, with the tokenizer in `folder`.

        Raises `ProjectError` if the tokenizer is unusable.
        """
        tokenizer = TextTokenizer.load(folder, UNLIMITED, model.num_rows, ("eos_token",))
        return cls(model, tokenizer, max_length, tokens_per_run, str(folder))

    def score(self, texts: Sequence[str], on_progress: OnProgress = ignore_progress) -> Likelihoods:
        """Return [N, 2]: each text's sum of token log-probabilities in nats, and its number of scored tokens.

        Args:
            on_progress: called after each packed row with the number of texts that it completed.

        Raises `ProjectError` if a sum is NaN or infinite.
        """
        sequences, counts = self.tokenizer.tokenize(texts)
        self.counts.add(counts)
        sums, completed = np.zeros((len(texts), 2)), 0
        for windows in self._window_runs(sequences):
            for window, found in zip(windows, self._log_probabilities(windows), strict=True):
                sums[window.text] += [found.sum(), len(found)]
            last = windows[-1].text  # it may continue in the next packed row
            on_progress(last - completed)
            completed = last
        on_progress(len(texts) - completed)
        require_finite(sums, "log-probabilities", self.folder)
        return sums

    def _window_runs(self, sequences: Sequence[Tokens]) -> Iterator[list[Window]]:
        group: list[Window] = []
        for text, tokens in enumerate(sequences):
            for window in self._split_into_windows(text, tokens):
                if (
                    group
                    and sum(len(each.tokens) for each in group) + len(window.tokens) > self.tokens_per_run
                ):
                    yield group
                    group = []
                group.append(window)
        if group:
            yield group

    def _split_into_windows(self, text: int, framed: Tokens) -> Iterator[Window]:
        """Yield the windows of a text, so that each token is scored once. An empty text has no window."""
        framing = self.tokenizer.bundle.framing
        start = framing.start or (self.tokenizer.bundle.end_id,)
        own = framed[len(framing.start) : len(framed) - len(framing.end)]
        tokens = np.array([*start, *own], np.int64)
        scored = len(start)
        while scored < len(tokens):
            room = self.max_length if scored == len(start) else scored + self.max_length // 2
            stop = min(len(tokens), room)
            begin = max(0, stop - self.max_length)
            yield Window(text, tokens[begin:stop], scored - begin)
            scored = stop

    @torch.no_grad()
    def _log_probabilities(self, windows: Sequence[Window]) -> list[NDArray[np.float64]]:
        sequences = [each.tokens for each in windows]
        packed = pack(sequences, self.tokenizer.bundle.filler_id, self.model.length_multiple).to(
            self.model.device
        )
        begins = np.cumsum([0, *map(len, sequences)])
        rows = [
            np.arange(begin + window.first - 1, begin + len(window.tokens) - 1)
            for begin, window in zip(begins, windows, strict=False)
        ]
        targets = np.concatenate([window.tokens[window.first :] for window in windows])
        found = log_probabilities(self.model, self.model.hidden_states(packed), np.concatenate(rows), targets)
        return np.split(found, np.cumsum([len(each) for each in rows])[:-1])
