"""Rendered conversations, and the interface of the templates that render them. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from neobert.runfiles.conversation_faults import Fault
from neobert.tasks.sft.conversation import Message

Turns = Literal["all", "last"]
Supervise = Literal["auto", "marks", "prefix", "everything"]
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
        """Render messages, then the generation prompt if `prompt` is true. Raises `TemplateFailedError`."""

    def render_marked(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """Render messages; return the text and the marked spans. Raises `TemplateFailedError`."""


@dataclass(slots=True)
class SupervisedText:
    """A rendered conversation.

    Attributes:
        spans: supervised text, in order; a span of a turn ends with its stop token.
        ends: end of each assistant turn with a known span; long conversations are cut here.
        faults: kind and reason of each fault.
        num_turns: turns that should be supervised.
        left_out: number of turns that should not be supervised, by reason.
    """

    text: str = ""
    spans: list[Span] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    faults: list[tuple[Fault, str]] = field(default_factory=list)
    num_turns: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
