"""Exact match and F1 of the answers of a whole split."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from neobert.data.batches.microbatch import Microbatch
from neobert.objectives.labelled import Predictions
from neobert.parallel import World
from neobert.tasks.question_answering.answers import answer_scores, best_window
from neobert.tasks.question_answering.evaluated import EvaluationText, Question
from neobert.tasks.question_answering.objective import best_spans
from neobert.tasks.question_answering.section import QuestionAnsweringConfig
from neobert.tasks.question_answering.windows import Window

COLUMNS = 5


class AnswerMetrics:
    """Loss and best spans of an evaluation: of each window, its segment and the row of `best_spans`."""

    def __init__(self, device: torch.device, text: EvaluationText, section: QuestionAnsweringConfig) -> None:
        self._text, self._section = text, section
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._num_labels = 0
        self._kept: list[NDArray[np.float64]] = [np.empty((0, COLUMNS))]

    def add(self, score: Predictions, batch: Microbatch) -> None:
        """Add the loss and the best spans of a microbatch."""
        self._loss_sum += score.loss_sum
        self._num_labels += batch.num_targets
        segments = batch.sample_ids.tolist()
        windows = [self._text.content[1][segment][1] for segment in segments]
        bounds = torch.tensor([(each.first, each.end) for each in windows]).reshape(-1, 2)
        first, end = bounds.to(score.logits.device).unbind(1)
        found = best_spans(score.logits[: len(windows)], first, end, self._section.max_answer_length)
        self._kept.append(np.column_stack([segments, found.double().cpu().numpy()]))

    def values(self, world: World) -> dict[str, float | None]:
        """Return loss, exact match and F1 over all ranks; each is None if there are no questions.

        With a null_threshold, also F1 of questions with and without an answer.
        """
        loss_sum = float(world.all_reduce_sum(self._loss_sum))
        (num_labels,) = world.sum_over_ranks([self._num_labels])
        gathered = world.gather(np.concatenate(self._kept).tobytes())

        def compute() -> dict[str, float | None]:
            rows = np.concatenate([np.frombuffer(each).reshape(-1, COLUMNS) for each in gathered])
            return {"eval/loss": loss_sum / num_labels if num_labels else None, **self._mean_scores(rows)}

        return world.on_main(compute)

    def _mean_scores(self, rows: NDArray[np.float64]) -> dict[str, float | None]:
        questions, segments = self._text.content
        by_question: dict[int, list[tuple[Window, NDArray[np.float64]]]] = {}
        for row in rows:
            number, window = segments[int(row[0])]
            by_question.setdefault(number, []).append((window, row[1:]))
        exact, f1 = list[float](), {True: list[float](), False: list[float]()}
        for number, found in by_question.items():
            scores = self._score_question(questions[number], found)
            exact.append(scores[0])
            f1[bool(questions[number].answers)].append(scores[1])
        values = {"eval/exact_match": _mean_or_none(exact), "eval/f1": _mean_or_none([*f1[True], *f1[False]])}
        if self._section.null_threshold is not None:
            values |= {
                "eval/has_answer_f1": _mean_or_none(f1[True]),
                "eval/no_answer_f1": _mean_or_none(f1[False]),
            }
        return values

    def _score_question(
        self, question: Question, found: list[tuple[Window, NDArray[np.float64]]]
    ) -> tuple[float, float]:
        best = best_window(np.stack([row for _, row in found]), self._section.null_threshold)
        if best is None:
            return answer_scores("", question.answers)
        window, (_, _, first, last) = found[best]
        return answer_scores(question.text(window, (int(first), int(last))), question.answers)


def _mean_or_none(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
