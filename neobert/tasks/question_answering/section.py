"""Keys and metrics of question answering in run files."""

# ruff: noqa: RUF009  (key() builds fields, which is what belongs in a class body)

from dataclasses import dataclass
from typing import Literal

from neobert.schema_fields import ConfigSection, NonEmpty, NonNegativeInt, PositiveInt, key
from neobert.tasks.keys import TaskKeys
from neobert.tasks.metric import LOSS, Metric


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class QuestionAnsweringConfig(ConfigSection):
    """Questions, and their answers in a context; dataset.text_column names the context."""

    question_column: NonEmpty | None = key(None, "Column of the question; null: question.", affects="data")
    answer_column: NonEmpty | None = key(
        None,
        "Column of the answers: a text, or texts with answer_start as in SQuAD; null: answers or answer.",
        affects="data",
    )
    start_column: NonEmpty | None = key(
        None,
        "Column of the answer's first character in the context, from 0; null: the answers hold it, or the "
        "context has the answer once.",
        affects="data",
    )
    doc_stride: NonNegativeInt = key(
        128, "Tokens that two windows of a long context share, at most half of a window.", affects="data"
    )
    windows_without_answer: Literal["no_answer", "ignored"] = key(
        "no_answer",
        "Target of windows that lack the answer: no_answer, which is the first token, or ignored, no target.",
        affects="data",
    )
    max_answer_length: PositiveInt = key(
        30, "Maximum length of a predicted answer in tokens.", affects="model"
    )
    null_threshold: float | None = key(
        None,
        "No answer is predicted if its score exceeds the best answer's by more than this; "
        "null: every question has an answer.",
        affects="model",
    )


OF_ANSWERS = (
    Metric("eval/exact_match", is_higher_better=True, is_share=True),
    Metric("eval/f1", is_higher_better=True),
)
F1_BY_KIND = (
    Metric("eval/has_answer_f1", is_higher_better=True),
    Metric("eval/no_answer_f1", is_higher_better=True),
)
"""F1 of questions with an answer, and F1 of questions without one."""

QUESTION_ANSWERING = TaskKeys(
    name="question_answering",
    package="neobert.tasks.question_answering",
    metrics=(LOSS, *F1_BY_KIND, *OF_ANSWERS),
    section=QuestionAnsweringConfig,
    about="Task question_answering: columns, windows and answers.",
)
