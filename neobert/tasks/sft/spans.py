"""Supervised text of a conversation: what the model would have written. Imports no torch.

A turn of the assistant lies between the generation prompt, which is rendered before it, and the end of the
conversation as it was then. Both are found by rendering the conversation's beginnings (prefixes). A template
that renders a turn differently once other messages follow has no such span, and the turn is refused: a model
that is used would never see the text that it was trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from neobert.runfiles.conversation_faults import Fault
from neobert.tasks.sft.conversation import Message

Turns = Literal["all", "last"]
Supervise = Literal["auto", "marks", "prefix", "everything"]
ASSISTANT = "assistant"
SHOWN = 40
"""Characters of a template's text that a reason quotes."""


class Span(NamedTuple):
    """Characters [start, stop) of a rendered conversation."""

    start: int
    stop: int


class TemplateFailedError(Exception):
    """A template that raises an error for a conversation."""


class Renderer(Protocol):
    """Interface of a chat template.

    Attributes:
        end: text of the tokenizer's eos token, or empty.
        special: texts of special tokens.
    """

    end: str
    special: tuple[str, ...]

    @property
    def has_marks(self) -> bool:
        """Return whether the template marks the text of the assistant ({% generation %})."""

    def text(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        """Render messages, with the generation prompt after them. Raises `TemplateFailedError`."""

    def marked(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """Render messages; return the text and the marked spans. Raises `TemplateFailedError`."""


@dataclass(slots=True)
class Supervised:
    """A rendered conversation.

    Attributes:
        spans: supervised text, in order; a span of a turn ends with its stop token.
        ends: end of each turn of the assistant whose place is known: long conversations are cut here.
        faults: what is wrong, with a reason.
        num_turns: turns that should be supervised.
    """

    text: str = ""
    spans: list[Span] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    faults: list[tuple[Fault, str]] = field(default_factory=list)
    num_turns: int = 0


def supervise(
    messages: Sequence[Message], renderer: Renderer, supervise_by: Supervise = "auto", turns: Turns = "all"
) -> Supervised:
    """Render a conversation and find its supervised text."""
    found = Supervised()
    places = [place for place, message in enumerate(messages) if message["role"] == ASSISTANT]
    wanted = places if turns == "all" else places[-1:]
    found.num_turns = len(wanted)
    if not wanted:
        found.faults.append((Fault.NO_TURN, "the conversation has no message of the assistant"))
        return found
    try:
        messages, found.text = _with_contents(messages, renderer)
        by_marks = supervise_by == "marks" or (supervise_by == "auto" and renderer.has_marks)
        marks = renderer.marked(messages)[1] if by_marks else []
    except TemplateFailedError as error:
        found.faults.append((Fault.FAILED, f"the template fails: {error}"))
        return found
    turn_of = _Turns(messages, renderer, found.text)
    if supervise_by == "everything":
        found.spans = [Span(0, len(found.text))]
        found.ends = [span.stop for place in places if isinstance(span := turn_of(place), Span)]
    elif by_marks:
        _by_marks(found, marks, places, wanted, turn_of)
    else:
        _by_prefixes(found, places, wanted, turn_of)
    contents = [message.get("content") for message in messages]
    found.faults += _lost(found, [text_of(contents[place]) for place in wanted])
    if repr_of := _repr_in(found.text, map(text_of, contents)):
        found.faults.append((Fault.REPR, f"the template renders Python's form of a value: {repr_of}"))
    return found


def text_of(content: object) -> str:
    """Return the text of a message's content, which is a string, a list of one text part, or missing."""
    if isinstance(content, list):
        return str(content[0]["text"])
    return str(content or "")


def _with_contents(messages: Sequence[Message], renderer: Renderer) -> tuple[Sequence[Message], str]:
    """Render messages with strings as content; if these are lost, with lists of text parts.

    Templates of models of text and images iterate over parts, and render a string as nothing.
    """
    contents = [_dense(text) for message in messages if (text := text_of(message.get("content")))]
    failure = None
    try:
        text = renderer.text(messages)
        if all(each in _dense(text) for each in contents):
            return messages, text
    except TemplateFailedError as error:
        failure = error
    parts = [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]
    try:
        of_parts = renderer.text(parts)
        if all(each in _dense(of_parts) for each in contents) and not _repr_in(
            of_parts, map(text_of, contents)
        ):
            return parts, of_parts
    except TemplateFailedError:
        pass
    if failure is not None:
        raise failure
    return messages, text


@dataclass(slots=True)
class _Turns:
    """Spans of the assistant's turns by prefix rendering; `__call__` returns a span, or why there is none."""

    messages: Sequence[Message]
    renderer: Renderer
    full: str
    known: dict[int, Span | str] = field(default_factory=dict)

    def __call__(self, place: int) -> Span | str:
        if place not in self.known:
            self.known[place] = self._find(place)
        return self.known[place]

    def _find(self, place: int) -> Span | str:
        name = f"message {place + 1}"
        try:
            before = self.renderer.text(self.messages[:place], prompt=True)
            # The last turn of a conversation is rendered already.
            is_last = place + 1 == len(self.messages)
            turn = self.full if is_last else self.renderer.text(self.messages[: place + 1])
        except TemplateFailedError as error:
            return f"the template fails for the messages up to {name}: {error}"
        if not turn.startswith(before):
            return self._another_beginning(place, before, turn)
        stop = max(len(before), len(self._without_end(turn)))
        if not self.full.startswith(turn[:stop]):
            change = _difference(turn, self.full)
            return f"{name} is rendered differently once other messages follow it: {change}"
        return Span(len(before), stop)

    def header(self, place: int) -> Span | None:
        """Return the part of the generation prompt that is rendered before a turn too: the role header."""
        try:
            bare = len(self.renderer.text(self.messages[:place]))
            prompt = self.renderer.text(self.messages[:place], prompt=True)
        except TemplateFailedError:
            return None
        same = _common(prompt, self.full)
        return Span(bare, same) if bare < same else None

    def _without_end(self, turn: str) -> str:
        """Return a conversation's text up to the end of its last turn.

        Some templates write the eos token once after the last turn's own stop token, at which a model stops.
        """
        turn, end = turn.rstrip(), self.renderer.end
        before = turn[: len(turn) - len(end)].rstrip() if end and turn.endswith(end) else ""
        return before if before.endswith(self.renderer.special) else turn

    def _another_beginning(self, place: int, before: str, turn: str) -> str:
        """Return why a turn does not begin with the generation prompt."""
        same = _common(before, turn)
        try:
            bare = len(self.renderer.text(self.messages[:place]))
        except TemplateFailedError:
            bare = 0
        if same >= bare:
            prompt, beginning = before[bare:][-SHOWN:], turn[bare:][:SHOWN]
            return f"the generation prompt is {prompt!r}, but message {place + 1} begins with {beginning!r}"
        return f"the text before message {place + 1} changes once it follows: {_difference(before, turn)}"


def _by_prefixes(found: Supervised, places: Sequence[int], wanted: Sequence[int], turn_of: _Turns) -> None:
    for place in places:
        span = turn_of(place)
        if isinstance(span, Span):
            found.ends.append(span.stop)
            if place in wanted:
                found.spans.append(span)
                if header := _header(found.text[span.start : span.stop], place, turn_of):
                    found.faults.append((Fault.OUTSIDE, header))
        elif place in wanted:
            found.faults.append((Fault.REWRITTEN, span))


def _header(text: str, place: int, turn_of: _Turns) -> str:
    """Return a reason if a template without a generation prompt has the role header inside the turn."""
    content = text_of(turn_of.messages[place].get("content")).strip()
    before = text.partition(content)[0].strip() if content else ""
    if not before:
        return ""
    try:
        bare = turn_of.renderer.text(turn_of.messages[:place])
    except TemplateFailedError:
        return ""
    if len(bare) < len(turn_of.renderer.text(turn_of.messages[:place], prompt=True)):
        return ""  # there is a prompt: the model writes what follows it, such as its thoughts
    return f"the template has no generation prompt, so that {before[:SHOWN]!r} would be trained"


def _by_marks(
    found: Supervised, marks: Sequence[Span], places: Sequence[int], wanted: Sequence[int], turn_of: _Turns
) -> None:
    """Take the marked spans; report marked text outside the turns, as far as their places are known."""
    spans = [turn_of(place) for place in places]
    exact = [span for span in spans if isinstance(span, Span)]
    found.ends = [span.stop for span in exact]
    found.spans = [mark for mark in marks if mark.stop > mark.start]
    if wanted != places:
        last = turn_of(wanted[-1])
        if isinstance(last, str):
            found.faults.append((Fault.REWRITTEN, last))
        start = last.start if isinstance(last, Span) else len(found.text)
        found.spans = [mark for mark in found.spans if mark.start >= start]
    if len(exact) == len(spans):
        starts, stops = (
            [0, *(span.stop for span in exact)],
            [*(span.start for span in exact), len(found.text)],
        )
        others = [Span(start, stop) for start, stop in zip(starts, stops, strict=True)]
    else:
        others = [span for place in places if (span := turn_of.header(place))]
    pieces = (found.text[start:stop].strip() for start, stop in _inside(found.spans, others))
    if outside := next(filter(None, pieces), ""):
        reason = f"the marks of the template include {outside[:SHOWN]!r}, which the model does not write"
        found.faults.append((Fault.OUTSIDE, reason))
    elif len(exact) == len(spans):
        # White space before a turn is part of the prompt; a model has stopped before the one after a turn.
        found.spans = [*_inside(found.spans, exact)]


def _inside(spans: Sequence[Span], others: Sequence[Span]) -> Iterator[Span]:
    """Yield what spans and other spans have in common; both are in order."""
    for span in spans:
        for other in others:
            start, stop = max(span.start, other.start), min(span.stop, other.stop)
            if start < stop:
                yield Span(start, stop)


def _lost(found: Supervised, contents: Sequence[str]) -> Iterator[tuple[Fault, str]]:
    """Yield a fault if contents of supervised turns are not in the supervised text, in their order."""
    if any(kind == Fault.REWRITTEN for kind, _ in found.faults):
        return  # turns without a span are reported as that
    supervised = "\0".join(_dense(found.text[start:stop]) for start, stop in found.spans)
    at = 0
    for content in map(_dense, contents):
        place = supervised.find(content, at)
        if place < 0:
            shown = content[:SHOWN]
            yield Fault.LOST, f"the template leaves out content of the assistant: {shown!r}"
            return
        at = place + len(content)


def _repr_in(text: str, contents: Iterable[str]) -> str:
    """Return the beginning of a Python value that a template rendered and no content has, or ""."""
    for sign in ("{'type':", "{'role':", '[{"type": "text"'):
        if sign in text and not any(sign in content for content in contents):
            at = text.index(sign)
            return repr(text[at : at + SHOWN])
    return ""


def _dense(text: str) -> str:
    """Return a text without white space, which templates trim and add."""
    return "".join(text.split())


def _common(first: str, second: str) -> int:
    """Return the length of the common beginning of two texts."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle - 1)
    return low


def _difference(first: str, second: str) -> str:
    """Return where two texts part, quoted."""
    at = max(0, _common(first, second) - 10)
    return f"{first[at:][:SHOWN]!r} becomes {second[at:][:SHOWN]!r}"
