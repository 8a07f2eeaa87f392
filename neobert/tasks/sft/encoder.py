"""Encoder of conversations.

A child process renders them with the chat template; they are tokenized with character offsets, by which the
supervised tokens are marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from neobert.data.sources.rows import TEXT, Row
from neobert.data.tokenize.encoding import SUPERVISED, Column, Counts, Encoded, SegmentEncoder
from neobert.printable import printable
from neobert.runfiles.conversation_faults import Fault, Occurrence
from neobert.tasks.conversation_pieces import piece_bounds
from neobert.tasks.row_encoder import RowEncoder
from neobert.tasks.sft.conversation import Conversation, with_system
from neobert.tasks.sft.neutral import rename_control_tokens, tokenize_neutral
from neobert.tasks.sft.rendered import SHOWN, Span, SupervisedText
from neobert.tasks.sft.template import MARKED, ChatTemplate, mark_tokens, remove_marks
from neobert.tasks.sft.tokens import MarkedTokens, tokenize

Ids = NDArray[np.int64]


def control_pattern(tokenizer: PreTrainedTokenizerFast, template: str) -> re.Pattern[str]:
    """Return a pattern of the control tokens: special tokens, and added tokens that the template writes."""
    added = tokenizer.added_tokens_decoder.values()
    control = [token.content for token in added if token.special or token.content in template]
    longest_first = sorted(control, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


@dataclass(frozen=True, slots=True)
class ConversationEncoder(RowEncoder):
    """Encoder of conversations as segments whose supervised tokens are marked.

    Attributes:
        backend: the tokenizer without a post-processor, which would move the offsets of tokens.
        control: pattern of tokens that only the template may write.
        neutral: tokenizer of conversations whose messages spell control tokens, which are plain text then;
            None: they are refused.
    """

    backend: Tokenizer
    template: ChatTemplate
    control: re.Pattern[str]
    system_prompt: str | None
    neutral: Tokenizer | None
    columns: tuple[Column, ...] = (SUPERVISED,)

    @classmethod
    def build(
        cls,
        texts: SegmentEncoder,
        template: ChatTemplate,
        control: re.Pattern[str],
        system_prompt: str | None,
        *,
        neutralizes: bool,
    ) -> ConversationEncoder:
        """Build the encoder.

        Args:
            system_prompt: system prompt of conversations that have none; None adds none.
            neutralizes: control tokens in messages are plain text; if false, such conversations are refused.
        """
        backend = without_post_processor(texts.backend)
        neutral = rename_control_tokens(backend, control) if neutralizes else None
        return cls(texts, backend, template, control, system_prompt, neutral)

    def encode(self, rows: Iterable[Row]) -> Encoded:
        """Encode one batch of rows. Conversations without supervised tokens are left out and counted."""
        batch = _Batch(Counts())
        conversations = [self._prepare(row, batch) for row in rows]
        usable = (each for each in conversations if each is not None)
        rendered = self.template.render(usable)
        for index, conversation in enumerate(conversations):
            batch.counts.documents += 1
            if conversation is not None:
                self._add_conversation(batch, index, conversation, next(rendered))
        return batch.build_encoded(self.dtype)

    def _prepare(self, row: Row, batch: _Batch) -> Conversation | None:
        """Return the conversation to render, or None if its messages contain control tokens.

        With a `neutral` tokenizer, control tokens in messages are marked as plain text instead.
        """
        batch.rows += 1
        messages, tools = Conversation.from_json(row[TEXT])
        conversation = Conversation(with_system(messages, self.system_prompt), tools)
        found = self.control.search(" ".join(_all_strings(conversation._asdict())))
        if found is None:
            return conversation
        if self.neutral is None:
            reason = f"a message spells the control token {found[0]!r}"
            batch.count_fault(Fault.CONTROL, batch.rows, conversation, reason)
            batch.count("without_target", 1)
            return None
        batch.count("neutralized", 1)
        return Conversation(*_mark_strings(conversation, self.control))

    def _add_conversation(
        self, batch: _Batch, index: int, conversation: Conversation, rendered: SupervisedText
    ) -> None:
        counts, number = batch.counts, index + 1
        found, plain = remove_marks(rendered)
        for kind, reason in dict(reversed(found.faults)).items():  # the first reason of each kind
            batch.count_fault(kind, number, conversation, reason)
        tokens = tokenize(partial(self._tokenize_plain, plain), found)
        supervised, length = int(tokens.marks.sum()), len(tokens.ids)
        batch.count("turns", found.num_turns)
        for name, number_of_turns in found.left_out.items():
            batch.count(name, number_of_turns)
        batch.count("crossing", tokens.num_crossing)
        self._check_ends(batch, number, conversation, tokens)
        if length > self.max_length and self.texts.long_documents == "error":
            batch.too_long = batch.too_long or (index, length)
        if length:
            counts.histogram[(length - 1).bit_length()] += 1
        elif not found.faults:  # else the conversation has a text, which was not rendered
            counts.empty += 1
        kept = 0
        for start, stop in self._piece_bounds(tokens, counts) if supervised else ():
            marks = tokens.marks[start:stop]
            if marks[1:].any():  # the first token of a segment has no token before it to predict it
                batch.ids.append(tokens.ids[start:stop])
                batch.marks.append(marks)
                kept += int(marks.sum())
            else:
                batch.count("pieces_without_target", 1)
        batch.count("supervised", kept)
        batch.count("lost", supervised - kept)
        if not supervised:
            batch.count("without_target", 1)
        elif not kept:
            reason = f"no supervised token is left of a conversation of {length:,} tokens"
            batch.count_fault(Fault.CUT, number, conversation, reason)

    def _tokenize_plain(self, plain: Sequence[Span], text: str) -> tuple[Ids, Ids]:
        """Return the ids and the offsets of the tokens; control tokens in `plain` are text."""
        if plain and self.neutral is not None:
            return tokenize_neutral(self.neutral, text, plain, self.control)
        encoding = self.backend.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.int64), np.array(encoding.offsets, np.int64).reshape(-1, 2)

    def _check_ends(
        self, batch: _Batch, number: int, conversation: Conversation, tokens: MarkedTokens
    ) -> None:
        """Count the tokens that end supervised turns; report those at which a model would not stop."""
        for last in tokens.turn_end_positions():
            token = int(tokens.ids[last])
            if self.texts.is_maskable[token]:
                shown = self.backend.decode([token], skip_special_tokens=False)[:SHOWN]
                reason = f"a turn ends with {shown!r}, not with a special token that stops the model"
                batch.count_fault(Fault.NO_STOP, number, conversation, reason)
                return
            stops = batch.counts.stops
            stops[str(token)] = stops.get(str(token), 0) + 1

    def _piece_bounds(self, tokens: MarkedTokens, counts: Counts) -> Sequence[tuple[int, int]]:
        """Return the bounds of the pieces to keep, by `dataset.long_documents` if the text is too long."""
        length, long_documents = len(tokens.ids), self.texts.long_documents
        if length < self.texts.min_length:
            counts.too_short += 1
            return ()
        bounds = piece_bounds(tokens.ends, length, self.max_length, long_documents)
        if length > self.max_length:
            counts.split += long_documents == "split"
            counts.truncated += long_documents == "truncate"
            counts.dropped += not bounds and long_documents != "split"
            counts.tokens_lost += length - sum(stop - start for start, stop in bounds)
        return bounds


@dataclass(slots=True)
class _Batch:
    """Segments and counts of one batch."""

    counts: Counts
    rows: int = 0
    ids: list[Ids] = field(default_factory=list)
    marks: list[NDArray[np.uint8]] = field(default_factory=list)
    too_long: tuple[int, int] | None = None

    def count(self, name: str, number: int) -> None:
        conversations = self.counts.conversations
        conversations[name] = conversations.get(name, 0) + number

    def count_fault(self, kind: Fault, number: int, conversation: Conversation, reason: str) -> None:
        """Count a fault of conversation `number`, and keep the reason if it is the first of its kind."""
        faults = self.counts.faults
        if (before := faults.get(kind.value)) is not None:
            faults[kind.value] = replace(before, count=before.count + 1)
        else:
            faults[kind.value] = Occurrence(
                1, number, f"{reason}; the conversation begins with {_first_words(conversation)}"
            )

    def build_encoded(self, dtype: np.dtype[np.unsignedinteger]) -> Encoded:
        tokens = np.concatenate([np.empty(0, np.int64), *self.ids]).astype(dtype)
        marks = np.concatenate([np.empty(0, np.uint8), *self.marks])
        lengths = np.array([len(each) for each in self.ids], np.int64)
        self.counts.segments, self.counts.tokens = len(lengths), len(tokens)
        return Encoded(tokens, lengths, self.counts, self.too_long, {SUPERVISED.name: marks})


def _first_words(conversation: Conversation) -> str:
    messages = sorted(conversation.messages, key=lambda message: message.get("role") != "user")
    text = MARKED.sub("", str(messages[0].get("content", "")))
    return repr(printable(text[:SHOWN]))


def without_post_processor(backend: Tokenizer) -> Tokenizer:
    """Return a copy of a tokenizer without its post-processor, which may strip spaces from offsets."""
    import json

    content = json.loads(backend.to_str())
    return Tokenizer.from_str(json.dumps(content | {"post_processor": None}))


def _all_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from _all_strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _all_strings(each)


def _mark_strings(value: Any, control: re.Pattern[str]) -> Any:
    """Return a JSON value with marks around the control tokens of its strings; keys are unchanged."""
    if isinstance(value, str):
        return mark_tokens(value, control)
    if isinstance(value, dict):
        return {key: _mark_strings(each, control) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [_mark_strings(each, control) for each in value]
    return value
