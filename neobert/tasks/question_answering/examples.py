"""Data layer of question answering: rows as windows of their contexts, labelled with the answer's tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.config.schema import RunConfig
from neobert.data.batches.targets import IGNORED
from neobert.data.examples import Examples
from neobert.data.sources.rows import TEXT, Row
from neobert.data.tokenize.encoding import SECOND, Column, Counts, Encoded
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.tasks.question_answering.labels import located_answers
from neobert.tasks.question_answering.rows import QUESTION, row_format
from neobert.tasks.question_answering.section import QUESTION_ANSWERING
from neobert.tasks.question_answering.windows import ContextWindows, Span, Window, WindowEncoder
from neobert.tasks.stored_labels import OF_PAIRS, LabelEncoder, LabelledRows, labelled_text_encoder

SPAN = Column("span", "int64", is_per_token=False)
BITS = 24
"""Low bits of a label, which hold the last token's position; the high bits hold the first token's."""
NO_ANSWER: Span = (0, 0)


class Questions(LabelledRows):
    """Data layer of question answering: a row is a question, its context and the answers."""

    label = SPAN

    def encoder(self, tokenizer: TokenizerBundle) -> QuestionEncoder:
        """Build the encoder of windows that share question_answering.doc_stride tokens."""
        section = QUESTION_ANSWERING.read_section(self.config)
        texts = labelled_text_encoder(self.config, tokenizer, tokenizer.pair_framing)
        windows = WindowEncoder(texts, section.doc_stride)
        return QuestionEncoder(texts, SPAN, windows, section.windows_without_answer == "ignored")

    def synthetic_columns(
        self,
        lengths: NDArray[np.int64],
        generator: np.random.Generator,
    ) -> Mapping[str, NDArray[Any]]:
        """Return a random token of each window as the answer."""
        positions = generator.integers(lengths)
        return {SPAN.name: span_label(positions, positions)}

    def identity(self) -> dict[str, Any]:
        """Return the settings of rows and windows that affect the prepared data, JSON-serializable."""
        section = QUESTION_ANSWERING.read_section(self.config)
        return row_format(self.config).identity() | {
            "task": "question_answering",
            **OF_PAIRS,
            "doc_stride": section.doc_stride,
            "windows_without_answer": section.windows_without_answer,
        }


@dataclass(frozen=True, slots=True)
class QuestionEncoder(LabelEncoder):
    """Encoder of rows as windows, each labelled with the first and last token of the first answer."""

    windows: WindowEncoder
    ignores: bool

    @property
    def columns(self) -> tuple[Column, ...]:
        """Side columns: the labels, and where the context begins."""
        return (self.label, SECOND)

    def encode(self, rows: Iterable[Row]) -> Encoded:
        """Encode one batch of rows; windows without the answer are labelled or ignored, as configured."""
        rows, counts, too_long = list(rows), Counts(), None
        ids: list[list[int]] = []
        labels: list[int] = []
        seconds: list[int] = []
        for place, (row, found) in enumerate(zip(rows, self.split_rows(rows), strict=True)):
            if found.length > self.max_length and self.texts.long_documents == "error":
                too_long = too_long or (place, found.length)
            answer = next(iter(located_answers(row)), None)
            tokens = None
            if answer is not None and answer.start is not None:
                tokens = found.token_span(answer.start, answer.start + len(answer.text))
            for window in self.kept_windows(found, counts):
                ids.append(window.ids)
                seconds.append(window.first)
                labels.append(self._window_label(window, tokens))
        flat = np.fromiter((each for window in ids for each in window), self.dtype)
        values = np.array(labels, np.int64)
        return self.build_encoded(flat, [len(each) for each in ids], values, counts, too_long, seconds)

    def split_rows(self, rows: Iterable[Row]) -> Iterable[ContextWindows]:
        """Return the windows of each row, in the order of the rows."""
        return self.windows.split((row[QUESTION], row[TEXT]) for row in rows)

    def kept_windows(self, windowed: ContextWindows, counts: Counts) -> tuple[Window, ...]:
        """Return the windows that `dataset.long_documents` keeps, and count the row."""
        counts.documents += 1
        counts.empty += not windowed.windows
        if not windowed.windows:
            return ()
        counts.histogram[(windowed.length - 1).bit_length()] += 1
        counts.one_sided += windowed.is_one_sided
        if windowed.length <= self.max_length:
            return windowed.windows
        if self.texts.long_documents == "split":
            counts.split += 1
            return windowed.windows
        if self.texts.long_documents == "truncate":
            counts.truncated += 1
            counts.tokens_lost += max(0, windowed.length - self.max_length)
            return windowed.windows[:1]
        counts.dropped += 1
        counts.tokens_lost += windowed.length
        return ()

    def _window_label(self, window: Window, tokens: Span | None) -> int:
        positions = None if tokens is None else window.span_in_window(tokens)
        if positions is None and tokens is not None and self.ignores:
            return IGNORED
        first, last = positions or NO_ANSWER
        return int(span_label(first, last))


def span_label(first: Any, last: Any) -> Any:
    """Return the label that encodes first and last position of a span: numbers, arrays or tensors."""
    return (first << BITS) | last


def build_examples(config: RunConfig) -> Examples:
    """Return the data layer of a question answering run."""
    return Questions(config)
