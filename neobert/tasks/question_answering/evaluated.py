"""Questions of the evaluation text, read again because the token store has token ids only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neobert.config.schema import RunConfig
from neobert.data.sources.corpus import open_corpus
from neobert.data.sources.parts import component_sources
from neobert.data.sources.retries import RetryingReader
from neobert.data.sources.rows import TEXT, Row
from neobert.data.store.prepared_data import PreparedData
from neobert.data.tokenize.encoding import Counts
from neobert.errors import ProjectError
from neobert.tasks.question_answering.examples import Questions
from neobert.tasks.question_answering.labels import located_answers
from neobert.tasks.question_answering.rows import row_format
from neobert.tasks.question_answering.windows import ContextWindows, Span, Window


@dataclass(frozen=True)
class Question:
    """A question of the evaluation, with its context in windows."""

    context: str
    answers: tuple[str, ...]
    windowed: ContextWindows

    def text(self, window: Window, span: Span) -> str:
        """Return the text between two token positions of a window."""
        start, stop = self.windowed.character_span(window, span, self.context)
        return self.context[start:stop]


@dataclass(frozen=True)
class EvaluationText:
    """The questions of the evaluation, by the segments of the token store."""

    config: RunConfig
    prepared: PreparedData

    @cached_property
    def content(self) -> tuple[list[Question], list[tuple[int, Window]]]:
        """Return the questions in order, and (question index, window) for each segment of the store.

        Raises DAT001 for text that differs from the store's.
        """
        assert self.prepared.eval is not None, "a run without evaluation text has no evaluation"
        encoder = Questions(self.config).encoder(self.prepared.tokenizer)
        rows = list(self._evaluation_rows())
        questions: list[Question] = []
        segments: list[tuple[int, Window]] = []
        for row, found in zip(rows, encoder.split_rows(rows), strict=True):
            segments += [(len(questions), window) for window in encoder.kept_windows(found, Counts())]
            texts = tuple(answer.text for answer in located_answers(row))
            questions.append(Question(row[TEXT], texts, found))
        lengths = [len(window.ids) for _, window in segments]
        stored = self.prepared.eval
        if lengths != stored.lengths(np.arange(len(stored))).tolist():
            hint = "restart the run when no other program writes to the evaluation text"
            raise ProjectError("DAT001", "the evaluation text changed during the run", hint, "dataset")
        return questions, segments

    def _evaluation_rows(self) -> Iterator[Row]:
        source = open_corpus(self.config.dataset, row_format(self.config)).evaluation
        assert source is not None
        for part in component_sources(source):
            yield from RetryingReader.from_config(part, self.config.dataset)
