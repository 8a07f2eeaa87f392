"""Columns of a table of questions, inferred for a run file."""

from __future__ import annotations

from pathlib import Path

from neobert.plurals import counted
from neobert.tasks.labelled_table import (
    NONE_NAMED,
    TEXT_SETTING,
    LabelledTable,
    Named,
    column_keys,
    named_column,
    quoted,
    read_columns,
    sample_texts,
)
from neobert.tasks.question_answering.rows import (
    ANSWER_COLUMNS,
    ANSWER_SETTING,
    CONTEXTS,
    QUESTION_SETTING,
    QUESTIONS,
)

QUESTION_NAMES, CONTEXT_NAMES = (*QUESTIONS, "query"), (*CONTEXTS, "passage", "paragraph")
ANSWER_NAMES = (*ANSWER_COLUMNS, "answer_text")
START_NAMES = ("answer_start", "start")


def infer(text: Path, named: Named = NONE_NAMED) -> LabelledTable:
    """Infer the columns of questions, contexts and answers. Raises `ProjectError` if one is unclear."""
    columns, first_rows, keys = read_columns(text)
    by_name = {each.name: each for each in columns}
    question = named_column(by_name, QUESTION_NAMES, text, "questions", QUESTION_SETTING, named)
    context = named_column(by_name, CONTEXT_NAMES, text, "contexts", TEXT_SETTING, named)
    answer = named_column(by_name, ANSWER_NAMES, text, "answers", ANSWER_SETTING, named)
    start = next((by_name[name] for name in START_NAMES if name in by_name), None)
    keys |= column_keys(by_name, QUESTIONS, question, QUESTION_SETTING)
    keys |= column_keys(by_name, CONTEXTS, context, TEXT_SETTING)
    keys |= column_keys(by_name, ANSWER_COLUMNS, answer, ANSWER_SETTING)
    notes = [
        f"question: column {quoted(question.name)}",
        f"context: column {quoted(context.name)}",
        f"answer: column {quoted(answer.name)}",
    ]
    if start is not None:
        keys["question_answering.start_column"] = start.name
        notes[-1] += f", with its position in the context in column {quoted(start.name)}"
    if answer.num_empty:
        keys["question_answering.null_threshold"] = 0.0
        notes.append(f"{counted(answer.num_empty, 'question')} without an answer: the model may predict none")
    lengths = tuple(map(sum, zip(question.lengths, context.lengths, strict=True)))
    return LabelledTable(keys, tuple(notes), lengths, sample_texts(context), first_rows=first_rows)
