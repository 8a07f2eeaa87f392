"""Parsing of answers: texts, and their start offsets in the context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from neobert.data.sources.rows import TEXT, Row, describe_kind
from neobert.errors import ProjectError
from neobert.plurals import counted
from neobert.printable import printable

CODE = "DAT020"
ANSWERS, START = "answers", "start"
SHOWN_CHARACTERS = 40


class Answer(NamedTuple):
    """An answer, and the index of its first character in the context, if that is known."""

    text: str
    start: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerParser:
    """Parser of a cell of answers: a text, an object or a list of objects as in SQuAD, or a list of texts."""

    setting: str

    def __call__(self, value: object, location: str) -> tuple[Answer, ...]:
        """Return the answers that are not empty; none for an empty cell. Raises DAT020 for other content."""
        if isinstance(value, Mapping):
            texts, starts = _as_list(value.get("text")), _as_list(value.get("answer_start"))
            if starts and len(starts) != len(texts):
                sizes = counted(len(texts), "answer"), counted(len(starts), "value")
                message = "the row has {}, but {} of answer_start".format(*sizes)
                raise ProjectError(CODE, message, "write one answer_start for each answer", location)
            value = [
                {"text": text, "answer_start": starts[number] if starts else None}
                for number, text in enumerate(texts)
            ]
        found = (self._parse_answer(each, location) for each in _as_list(value))
        return tuple(answer for answer in found if answer.text)

    def _parse_answer(self, value: object, location: str) -> Answer:
        text, start = value, None
        if isinstance(value, Mapping):
            text, start = value.get("text"), parse_start(value.get("answer_start"), location)
        if isinstance(text, str):
            return Answer(text, start)
        hint = f"set {self.setting} to a column of texts, or of objects with text and answer_start"
        raise ProjectError(CODE, f"an answer is {describe_kind(text)}, not text", hint, location)


def parse_start(value: object, location: str) -> int | None:
    """Return a character index, or None for an empty cell. Raises DAT020 unless a whole number from 0."""
    if value is None or value == "" or value == []:
        return None
    if isinstance(value, list | tuple) and len(value) == 1:
        return parse_start(value[0], location)
    try:
        number = float(value) if isinstance(value, str | int | float) else -1.0
    except ValueError:
        number = -1.0
    if number != int(number) or number < 0:
        message = f"answer_start {printable(str(value))} is not the index of a character"
        raise ProjectError(CODE, message, "write the index of the answer's first character, from 0", location)
    return int(number)


def located_answers(row: Row) -> tuple[Answer, ...]:
    """Return the answers of a row with their character offsets; an offset is None if it cannot be located.

    An answer that is not at its stated offset is located if it occurs once: some rows count bytes.
    """
    found: tuple[Answer, ...] = row[ANSWERS] or ()
    if (start := row.get(START)) is not None:
        found = tuple(answer._replace(start=start) for answer in found[:1]) + found[1:]
    return tuple(Answer(answer.text, _locate_answer(answer, row[TEXT])) for answer in found)


def _locate_answer(answer: Answer, context: str) -> int | None:
    if answer.start is not None and context.startswith(answer.text, answer.start):
        return answer.start
    start = context.find(answer.text)
    return start if start >= 0 and context.find(answer.text, start + 1) < 0 else None


@dataclass(frozen=True, slots=True)
class RowCheck:
    """Check of a row: each answer occurs in the context, and with `needs_answer` there is at least one."""

    needs_answer: bool

    def __call__(self, row: Row, location: str) -> None:
        """Raise DAT020 for an answer that cannot be located, or a row without one if `needs_answer`."""
        found = located_answers(row)
        if not found and self.needs_answer and row[ANSWERS] is not None:
            hint = "set question_answering.null_threshold to 0 if questions may have no answer, or remove "
            raise ProjectError(CODE, "the row has no answer", f"{hint}the row", location)
        for answer in found:
            if answer.start is None:
                raise _missing_answer_error(answer.text, row, location)


def _missing_answer_error(text: str, row: Row, location: str) -> ProjectError:
    given = next((each.start for each in row[ANSWERS] if each.text == text), None)
    given = row.get(START) if given is None else given
    times, shown = row[TEXT].count(text), printable(text[:SHOWN_CHARACTERS])
    message, hint = f"answer {shown!r} is not in the context", "correct the answer, or remove the row"
    if times and given is not None:
        message = f"answer {shown!r} occurs {times} times in the context, but not at character {given}"
        hint = "correct answer_start, or remove the row"
    elif times:
        message = f"answer {shown!r} occurs {times} times in the context, and the row has no answer_start"
        hint = "give the character offset in answer_start (question_answering.start_column)"
    return ProjectError(CODE, message, hint, location)


def _as_list(value: Any) -> list[Any]:
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
