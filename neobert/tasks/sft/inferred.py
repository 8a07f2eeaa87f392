"""Form and columns of a table of conversations, inferred for a run file. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from neobert.config.text_formats import TEXT, text_format
from neobert.data.sources.rows import trl_hint
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.plurals import counted, listed
from neobert.tasks.conversation_pieces import TurnSize
from neobert.tasks.labelled_table import (
    MAX_ROWS,
    NONE_NAMED,
    LabelledTable,
    Named,
    quoted,
    renamed_answers,
    unclear_table_error,
)
from neobert.tasks.sft.conversation import CODE as MALFORMED_ROW
from neobert.tasks.sft.conversation import (
    FORMS,
    NO_ASSISTANT,
    NOTHING_SUPERVISED,
    THOUGHTS,
    ConversationForm,
    Message,
    column_form,
    detect_form,
    is_empty,
    parse_messages,
)
from neobert.tasks.sft.rows import SETTING
from neobert.tasks.table_files import read_rows, training_tables

SAMPLED_CONVERSATIONS = 128
HEADER = "the assistant answers: "
"""Text with as many tokens as the role and the control tokens of a message have."""


def infer(text: Path, named: Named = NONE_NAMED) -> LabelledTable:
    """Infer the form of the conversations. Raises `ProjectError` for a file without supervised messages."""
    rows = _training_rows(text)
    first = next(rows, None)
    if first is None:
        raise unclear_table_error(text, "the file has no rows", "pass a file with a conversation per row")
    form, keys = _detect_form(first[1], text, named)
    conversations, sample, stride = list[tuple[TurnSize, ...]](), list[list[str]](), 1
    num_messages, num_answers, num_rejected, unanswered = 0, 0, 0, list[str]()
    malformed, num_malformed = None, 0
    later = _later_rows(rows)
    for location, values in islice(chain([first], later), MAX_ROWS):
        try:
            messages, tools = form.conversation(values, location)
        except ProjectError as error:
            malformed, num_malformed = malformed or error, num_malformed + 1
            continue
        if len(conversations) % stride == 0:
            sample.append([_as_json(tools), *(f"{HEADER}{_message_text(message)}" for message in messages)])
        if len(sample) > SAMPLED_CONVERSATIONS:
            sample, stride = sample[::2], 2 * stride
        conversations.append(_turn_sizes(messages, tools))
        num_messages += len(messages)
        num_answers += sum(each["role"] == "assistant" for each in messages)
        num_rejected += "completion" in form.columns and values.get("label") is False
        if not any(map(_is_answer, messages)):
            unanswered.append(location)
    if malformed is not None:
        of = f"{num_malformed:,} of {counted(num_malformed + len(conversations), 'row')}"
        raise replace(malformed, message=f"{malformed.message} ({of})")
    if not num_answers:
        message = f"no token of {counted(len(conversations), 'conversation')} is supervised: {NO_ASSISTANT}"
        hint = "pass conversations with messages of the assistant"
        raise ProjectError(NOTHING_SUPERVISED, message, hint, str(text), EXIT_USAGE)
    if unanswered:
        of = f"{len(unanswered):,} of {counted(len(conversations), 'conversation')}"
        message = f"{NO_ASSISTANT} with content and weight 1 ({of})"
        hint = "correct or remove these rows"
        raise ProjectError(NOTHING_SUPERVISED, message, hint, unanswered[0], EXIT_USAGE)
    _require_no_rejected(num_rejected, len(conversations), text)
    lengths = tuple(sum(sum(turn) for turn in turns) for turns in conversations)
    first_rows = None if next(later, None) is None else len(lengths)
    per_row = f"{num_messages / len(lengths):.1f} messages each"
    size = f"{counted(len(lengths), 'row')}, {per_row}"
    notes = (f"conversations: {form.name}, {size}{_unread_columns(first[1], form)}",)
    texts = tuple(chain.from_iterable(sample))
    return LabelledTable(keys, notes, lengths, texts, tuple(conversations), first_rows)


def _require_no_rejected(num_rejected: int, num_rows: int, text: Path) -> None:
    """Raise `ProjectError` if completions of a table for TRL's KTO have the label false."""
    if num_rejected:
        of = f"{num_rejected:,} of {counted(num_rows, 'row')}"
        message = f"label is false in {of}: TRL's KTO rejects such completions, and a run would learn them"
        hint = "keep the rows with label true, or rename the column"
        raise ProjectError(MALFORMED_ROW, message, hint, str(text), EXIT_USAGE)


def _unread_columns(values: Mapping[str, Any], form: ConversationForm) -> str:
    unread = [quoted(name) for name in values if name not in (*form.columns, *form.optional)]
    return f"; columns not read: {listed(unread)}" if unread else ""


def _later_rows(
    rows: Iterator[tuple[str, Mapping[str, Any]]],
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows after the first; a malformed line is a malformed row, as the table has conversations."""
    try:
        yield from rows
    except ProjectError as error:
        raise replace(error, code=MALFORMED_ROW) from None


def _turn_sizes(messages: Sequence[Message], tools: list[Any]) -> tuple[TurnSize, ...]:
    """Return the sizes in bytes of the turns of a conversation, with role headers as parts of prompts."""
    turns, prompt = [], _num_bytes(_as_json(tools))
    for message in messages:
        size, prompt = _num_bytes(_message_text(message)), prompt + len(HEADER)
        if message["role"] == "assistant":
            turns.append(TurnSize(prompt, size))
            prompt = 0
        else:
            prompt += size
    return (*turns, TurnSize(prompt, 0)) if prompt else tuple(turns)


def _is_answer(message: Message) -> bool:
    return message["role"] == "assistant" and not is_empty(message) and message.get("weight") != 0


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _message_text(message: Message) -> str:
    texts = (message.get(key) or "" for key in ("content", *THOUGHTS))
    return f"{''.join(map(str, texts))}{_as_json(message.get('tool_calls', []))}"


def _as_json(objects: list[Any]) -> str:
    return json.dumps(objects) if objects else ""


def _detect_form(
    values: Mapping[str, Any], text: Path, named: Named
) -> tuple[ConversationForm, dict[str, Any]]:
    if SETTING in named:
        if named[SETTING] not in values:
            known = listed([*map(quoted, values)], 30)
            message = f"the table has no column {quoted(named[SETTING])} (columns: {known})"
            raise unclear_table_error(text, message, f"set {SETTING} to one of the columns")
        return column_form(named[SETTING]), {SETTING: named[SETTING]}
    if form := detect_form(values):
        return form, {}
    columns = [name for name, value in values.items() if isinstance(value, list) and _holds_messages(value)]
    if len(columns) == 1:
        return column_form(columns[0]), {SETTING: columns[0]}
    known = "; ".join(form.name for form in FORMS)
    names = ", ".join(map(quoted, values)) or "none"
    message = f"the columns match no form of conversations: {names}"
    if renamed := renamed_answers(values):
        raise unclear_table_error(text, message, f"rename {renamed}")
    raise unclear_table_error(text, message, f"{trl_hint(values)}rename the columns to one of: {known}")


def _holds_messages(value: object) -> bool:
    try:
        parse_messages(value, "")
    except ProjectError:
        return False
    return True


def _training_rows(text: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for file in training_tables(text):
        if text_format(file) == TEXT:
            raise unclear_table_error(
                file, "the file is plain text without conversations", "pass JSON lines, CSV or parquet"
            )
        yield from read_rows(file)
