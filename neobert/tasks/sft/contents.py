"""Contents of messages in rendered text: lost ones, and values in the form of Python. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neobert.runfiles.conversation_faults import Fault
from neobert.tasks.sft.conversation import THOUGHTS, Message, called_tools
from neobert.tasks.sft.rendered import SHOWN, Renderer, SupervisedText, TemplateFailedError

PYTHON_FORMS = ("{'type':", "{'role':", '[{"type": "text"')


def content_text(content: object) -> str:
    """Return the text of a message's content: a string or a list of one text part; '' if it has none."""
    if isinstance(content, list):
        return str(content[0]["text"])
    return str(content or "")


def render_contents(messages: Sequence[Message], renderer: Renderer) -> tuple[Sequence[Message], str]:
    """Render messages; return them with content as it was passed to the template, and the text.

    Content is passed as strings. If the text then lacks it, because a multimodal template iterates over
    parts, content is passed as text parts, unless that fails too. Raises `TemplateFailedError` if both fail.
    """
    contents = [content_text(message.get("content")) for message in messages]
    failure, text = None, ""
    try:
        text = renderer.text(messages)
        if _has_all(text, contents):
            return messages, text
    except TemplateFailedError as error:
        failure = error
    parts = [_with_text_part(message) for message in messages]
    try:
        of_parts = renderer.text(parts)
        if _has_all(of_parts, contents) and not find_python_repr(of_parts, contents):
            return parts, of_parts
    except TemplateFailedError:
        pass  # the error for strings is the one that counts
    if failure is not None:
        raise failure
    return messages, text


def missing_contents(
    conversation: SupervisedText, messages: Sequence[Message]
) -> Iterator[tuple[Fault, str]]:
    """Yield a fault for the first content, and the first called tool, that the supervised text lacks.

    Contents must be in the order of the messages. Of a tool call, only the name is compared.
    """
    if any(kind == Fault.REWRITTEN for kind, _ in conversation.faults):
        return  # turns without a span are reported as that
    supervised = "\0".join(
        _without_whitespace(conversation.text[start:stop]) for start, stop in conversation.spans
    )
    at = 0
    for content in (_without_whitespace(content_text(message.get("content"))) for message in messages):
        position = supervised.find(content, at)
        if position < 0:
            shown = content[:SHOWN]
            yield Fault.LOST, f"the template leaves out content of the assistant: {shown!r}"
            return
        at = position + len(content)
    names = (name for message in messages for name in called_tools(message))
    if name := next((name for name in names if _without_whitespace(name) not in supervised), ""):
        yield Fault.LOST, f"the template leaves out a tool call of the assistant: {name[:SHOWN]!r}"


def missing_thoughts(conversation: SupervisedText, last: Message) -> Iterator[tuple[Fault, str]]:
    """Yield a fault for each reasoning key (`THOUGHTS`) of the last answer whose value the text lacks."""
    written = _without_whitespace(conversation.text)
    for key in THOUGHTS:
        thoughts = str(last.get(key) or "")
        if _without_whitespace(thoughts) not in written:
            reason = f"the template leaves out {key} of the assistant: {thoughts[:SHOWN]!r}"
            yield Fault.LOST, reason


def find_python_repr(text: str, contents: Sequence[str]) -> str:
    """Return the start of a Python repr that is in the text and in no content; '' if there is none."""
    for sign in PYTHON_FORMS:
        if sign in text and not any(sign in content for content in contents):
            at = text.index(sign)
            return repr(text[at : at + SHOWN])
    return ""


def _with_text_part(message: Message) -> Message:
    content = message.get("content")
    return (
        {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message
    )


def _has_all(text: str, contents: Sequence[str]) -> bool:
    rendered = _without_whitespace(text)
    return all(_without_whitespace(content) in rendered for content in contents)


def _without_whitespace(text: str) -> str:
    return "".join(text.split())
