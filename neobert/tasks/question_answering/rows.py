"""Row format of question answering: the question, its context, and the answers."""

from __future__ import annotations

from neobert.config.schema import RunConfig
from neobert.data.sources.rows import TEXT, TEXT_SETTING, Field, RowFormat
from neobert.tasks.question_answering.section import QUESTION_ANSWERING

QUESTION = "question"
QUESTIONS, CONTEXTS, ANSWER_COLUMNS = ("question",), ("context",), ("answers", "answer")
QUESTION_SETTING = "question_answering.question_column"
ANSWER_SETTING, START_SETTING = "question_answering.answer_column", "question_answering.start_column"


def row_format(config: RunConfig) -> RowFormat:
    """Return the row format of a question answering run."""
    # `lint` of other tasks does without
    from neobert.tasks.question_answering.labels import ANSWERS, START, AnswerParser, RowCheck, parse_start

    dataset, section = config.dataset, QUESTION_ANSWERING.read_section(config)
    read = AnswerParser(ANSWER_SETTING)
    fields = [
        Field(QUESTION, QUESTION_SETTING, section.question_column, QUESTIONS),
        Field(TEXT, TEXT_SETTING, dataset.text_column, CONTEXTS),
        Field(ANSWERS, ANSWER_SETTING, section.answer_column, ANSWER_COLUMNS, read, is_text=False),
    ]
    if section.start_column is not None:
        fields.append(Field(START, START_SETTING, section.start_column, read=parse_start, is_text=False))
    check = RowCheck(section.null_threshold is None)
    return RowFormat(tuple(fields), dataset.column_names, dataset.tsv_quotes, check)
