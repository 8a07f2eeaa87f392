"""Turns of the assistant in a rendered conversation, found by rendering its beginnings. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from neobert.tasks.sft.conversation import Message
from neobert.tasks.sft.rendered import SHOWN, Renderer, Span, TemplateFailedError


@dataclass(slots=True)
class AssistantTurns:
    """Spans of the assistant's turns by prefix rendering.

    Attributes:
        full: the whole conversation as text.
        known: span of each turn, or the reason why it has none, by message index.
    """

    messages: Sequence[Message]
    renderer: Renderer
    full: str
    known: dict[int, Span | str] = field(default_factory=dict)

    def __call__(self, index: int) -> Span | str:
        """Return the span of the turn at a message index, or the reason why there is none."""
        if index not in self.known:
            self.known[index] = self._find_turn(index)
        return self.known[index]

    def _find_turn(self, index: int) -> Span | str:
        name = f"message {index + 1}"
        try:
            before = self.renderer.text(self.messages[:index], prompt=True)
            # The last turn of a conversation is rendered already.
            is_last = index + 1 == len(self.messages)
            turn = self.full if is_last else self.renderer.text(self.messages[: index + 1])
        except TemplateFailedError as error:
            return f"the template fails for the messages up to {name}: {error}"
        if not turn.startswith(before):
            return self._header_mismatch(index, before, turn)
        stop = max(len(before), len(self._without_end(turn)))
        if not self.full.startswith(turn[:stop]):
            change = _first_difference(turn, self.full)
            return f"{name} is rendered differently once other messages follow it: {change}"
        return Span(len(before), stop)

    def header_span(self, index: int) -> Span | None:
        """Return the role header before a turn, which text and generation prompt share; None if unknown."""
        try:
            bare = len(self.renderer.text(self.messages[:index]))
            prompt = self.renderer.text(self.messages[:index], prompt=True)
        except TemplateFailedError:
            return None
        same = _common_prefix_length(prompt, self.full)
        return Span(bare, same) if bare < same else None

    def _without_end(self, turn: str) -> str:
        """Return a conversation's text up to the end of its last turn.

        Some templates write the eos token once after the last turn's own stop token, at which a model stops.
        """
        turn, end = turn.rstrip(), self.renderer.end
        before = turn[: len(turn) - len(end)].rstrip() if end and turn.endswith(end) else ""
        return before if before.endswith(self.renderer.special) else turn

    def _header_mismatch(self, index: int, before: str, turn: str) -> str:
        same = _common_prefix_length(before, turn)
        try:
            bare = len(self.renderer.text(self.messages[:index]))
        except TemplateFailedError:
            bare = 0
        if same >= bare:
            prompt, beginning = before[bare:][-SHOWN:], turn[bare:][:SHOWN]
            return f"the generation prompt is {prompt!r}, but message {index + 1} begins with {beginning!r}"
        return (
            f"the text before message {index + 1} changes once that message follows: "
            f"{_first_difference(before, turn)}"
        )


def _common_prefix_length(first: str, second: str) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle - 1)
    return low


def _first_difference(first: str, second: str) -> str:
    at = max(0, _common_prefix_length(first, second) - 10)
    return f"{first[at:][:SHOWN]!r} becomes {second[at:][:SHOWN]!r}"
