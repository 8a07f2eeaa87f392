"""Supervised text of a conversation: what the model would have written. Imports no torch.

A turn of the assistant lies between the generation prompt, which is rendered before it, and the end of the
conversation as it was then. Both are found by rendering the conversation's beginnings (prefixes). A template
that renders a turn differently once other messages follow has no such span, and the turn is refused: at
inference, the model would never see the text that it was trained on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from neobert.runfiles.conversation_faults import Fault
from neobert.tasks.sft.contents import (
    content_text,
    find_python_repr,
    missing_contents,
    missing_thoughts,
    render_contents,
)
from neobert.tasks.sft.conversation import NO_ASSISTANT, Message, is_empty
from neobert.tasks.sft.rendered import (
    SHOWN,
    Renderer,
    Span,
    Supervise,
    SupervisedText,
    TemplateFailedError,
    Turns,
)
from neobert.tasks.sft.turns import AssistantTurns

ASSISTANT = "assistant"


def supervise(
    messages: Sequence[Message],
    renderer: Renderer,
    supervise_by: Supervise = "auto",
    turns: Turns = "all",
    weightless: Collection[int] = (),
) -> SupervisedText:
    """Render a conversation and find its supervised text; the problems are in its `faults`.

    `weightless` are the indices of messages that are not supervised. Turns without content are not
    supervised either, because a model would learn to answer with a stop token alone. A first message without
    marks is not supervised if the template cannot write the prompt before it.
    """
    supervised = SupervisedText()
    indices = [index for index, message in enumerate(messages) if message["role"] == ASSISTANT]
    empty = {index for index in indices if is_empty(messages[index])} - {*weightless}
    left_out = sorted({*weightless, *empty}.intersection(indices))
    chosen = indices if turns == "all" else indices[-1:]
    wanted = [index for index in chosen if index not in left_out]
    supervised.left_out = {
        "weightless": len({*weightless}.intersection(chosen)),
        "empty": len(empty & {*chosen}),
    }
    is_marked = supervise_by == "marks" or (supervise_by == "auto" and renderer.has_marks)
    needs_prompts = supervise_by != "everything" and not is_marked
    if wanted[:1] == [0] and needs_prompts and not _has_first_prompt(renderer):
        wanted, supervised.left_out["unprompted"] = wanted[1:], 1
    supervised.num_turns = len(wanted)
    if not wanted:
        which = " with content and weight 1" if indices else ""
        supervised.faults.append((Fault.NO_TURN, f"{NO_ASSISTANT}{which}"))
        return supervised
    try:
        messages, supervised.text = render_contents(messages, renderer)
        marks = renderer.render_marked(messages)[1] if is_marked else []
    except TemplateFailedError as error:
        supervised.faults.append((Fault.FAILED, f"the template fails: {error}"))
        return supervised
    turn_of = AssistantTurns(messages, renderer, supervised.text)
    if supervise_by == "everything":
        known, untrained = (
            _known_spans(supervised, indices, turn_of),
            _known_spans(supervised, left_out, turn_of, is_needed=True),
        )
        supervised.spans, supervised.ends = (
            _complement(untrained, len(supervised.text)),
            [span.stop for span in known],
        )
    elif is_marked:
        _add_marked_spans(supervised, marks, indices, wanted, turn_of)
    else:
        _add_prefix_spans(supervised, indices, wanted, turn_of)
    contents = [content_text(message.get("content")) for message in messages]
    supervised.faults += missing_contents(supervised, [messages[index] for index in wanted])
    if wanted[-1:] == [len(messages) - 1]:
        supervised.faults += missing_thoughts(supervised, messages[-1])
    if form := find_python_repr(supervised.text, contents):
        supervised.faults.append((Fault.REPR, f"the template renders Python's form of a value: {form}"))
    return supervised


def _has_first_prompt(renderer: Renderer) -> bool:
    try:
        renderer.text([], prompt=True)
    except TemplateFailedError:
        return False
    return True


def _add_prefix_spans(
    supervised: SupervisedText, indices: Sequence[int], wanted: Sequence[int], turn_of: AssistantTurns
) -> None:
    for index in indices:
        span = turn_of(index)
        if isinstance(span, Span):
            supervised.ends.append(span.stop)
            if index in wanted:
                supervised.spans.append(span)
                if header := _header_fault(supervised.text[span.start : span.stop], index, turn_of):
                    supervised.faults.append((Fault.NO_PROMPT, header))
        elif index in wanted:
            supervised.faults.append((Fault.REWRITTEN, span))


def _header_fault(text: str, index: int, turn_of: AssistantTurns) -> str:
    """Return a reason if the turn has the role header, because there is no generation prompt; else ''."""
    content = content_text(turn_of.messages[index].get("content")).strip()
    before = text.partition(content)[0].strip() if content else ""
    if not before:
        return ""
    try:
        bare = turn_of.renderer.text(turn_of.messages[:index])
    except TemplateFailedError:
        return ""
    if len(bare) < len(turn_of.renderer.text(turn_of.messages[:index], prompt=True)):
        return ""  # there is a prompt: the model writes what follows it, such as its thoughts
    return f"the template has no generation prompt, so that {before[:SHOWN]!r} would be trained"


def _add_marked_spans(
    supervised: SupervisedText,
    marks: Sequence[Span],
    indices: Sequence[int],
    wanted: Sequence[int],
    turn_of: AssistantTurns,
) -> None:
    """Use the marked spans; report marked text outside the turns whose spans are known."""
    exact = _known_spans(supervised, indices, turn_of)
    supervised.ends = [span.stop for span in exact]
    supervised.spans = [mark for mark in marks if mark.stop > mark.start]
    if wanted != indices:
        supervised.spans = [
            *_intersections(supervised.spans, _known_spans(supervised, wanted, turn_of, is_needed=True))
        ]
    if len(exact) == len(indices):
        others = _complement(exact, len(supervised.text))
    else:
        others = [span for index in indices if (span := turn_of.header_span(index))]
    pieces = (supervised.text[start:stop].strip() for start, stop in _intersections(supervised.spans, others))
    if outside := next(filter(None, pieces), ""):
        reason = f"the marks of the template include {outside[:SHOWN]!r}, which the model does not write"
        supervised.faults.append((Fault.OUTSIDE, reason))
    elif len(exact) == len(indices):
        # Whitespace before a turn is part of the prompt; a model has stopped before the one after a turn.
        supervised.spans = [*_intersections(supervised.spans, exact)]


def _known_spans(
    supervised: SupervisedText, indices: Sequence[int], turn_of: AssistantTurns, *, is_needed: bool = False
) -> list[Span]:
    """Return the known spans of turns; report turns without a known span if `is_needed`."""
    spans = [turn_of(index) for index in indices]
    if is_needed:
        supervised.faults += [(Fault.REWRITTEN, span) for span in spans if isinstance(span, str)]
    return [span for span in spans if isinstance(span, Span)]


def _complement(spans: Sequence[Span], length: int) -> list[Span]:
    starts, stops = [0, *(span.stop for span in spans)], [*(span.start for span in spans), length]
    return [Span(start, stop) for start, stop in zip(starts, stops, strict=True)]


def _intersections(spans: Sequence[Span], others: Sequence[Span]) -> Iterator[Span]:
    for span in spans:
        for other in others:
            start, stop = max(span.start, other.start), min(span.stop, other.stop)
            if start < stop:
                yield Span(start, stop)
