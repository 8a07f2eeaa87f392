"""Supervised text of a conversation: what the model would have written. Imports no torch.

A turn of the assistant lies between the generation prompt, which is rendered before it, and the end of the
conversation as it was then. Both are found by rendering the conversation's beginnings (prefixes). A template
that renders a turn differently once other messages follow has no such span, and the turn is refused: a model
that is used would never see the text that it was trained on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neobert.runfiles.conversation_faults import Fault
from neobert.tasks.sft.contents import lost, python_form, text_of, with_contents
from neobert.tasks.sft.conversation import Message
from neobert.tasks.sft.rendered import (
    SHOWN,
    Renderer,
    Span,
    Supervise,
    Supervised,
    TemplateFailedError,
    Turns,
)
from neobert.tasks.sft.turns import AssistantTurns

ASSISTANT = "assistant"


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
        messages, found.text = with_contents(messages, renderer)
        by_marks = supervise_by == "marks" or (supervise_by == "auto" and renderer.has_marks)
        marks = renderer.marked(messages)[1] if by_marks else []
    except TemplateFailedError as error:
        found.faults.append((Fault.FAILED, f"the template fails: {error}"))
        return found
    turn_of = AssistantTurns(messages, renderer, found.text)
    if supervise_by == "everything":
        found.spans = [Span(0, len(found.text))]
        found.ends = [span.stop for place in places if isinstance(span := turn_of(place), Span)]
    elif by_marks:
        _by_marks(found, marks, places, wanted, turn_of)
    else:
        _by_prefixes(found, places, wanted, turn_of)
    contents = [text_of(message.get("content")) for message in messages]
    found.faults += lost(found, [contents[place] for place in wanted])
    if form := python_form(found.text, contents):
        found.faults.append((Fault.REPR, f"the template renders Python's form of a value: {form}"))
    return found


def _by_prefixes(
    found: Supervised, places: Sequence[int], wanted: Sequence[int], turn_of: AssistantTurns
) -> None:
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


def _header(text: str, place: int, turn_of: AssistantTurns) -> str:
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
    found: Supervised,
    marks: Sequence[Span],
    places: Sequence[int],
    wanted: Sequence[int],
    turn_of: AssistantTurns,
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
