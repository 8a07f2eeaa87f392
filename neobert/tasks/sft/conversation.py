"""Conversations: messages with roles, checked, from the forms that datasets use. Imports no torch.

Messages are as chat templates read them: `role`, `content` (a string), other keys such as `tool_calls`. Keys
without a value are left out, as transformers leaves them out when a model is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from neobert.data.sources.rows import describe_kind
from neobert.errors import ProjectError
from neobert.printable import printable

CODE, NOTHING_SUPERVISED = "DAT020", "SFT001"
NO_ASSISTANT = "the conversation has no message of the assistant"
Message = dict[str, Any]
ROLES = ("system", "user", "assistant", "tool", "developer")
_ROLES = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
    "observation": "tool", "function_response": "tool", "function": "tool", "function_call": "function_call",
} | {role: role for role in ROLES}  # fmt: skip
"""Roles by their names in the ShareGPT form too, whose `function_call` is an assistant that calls a tool."""
SYSTEM_ROLES = ("system", "developer")
THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""Keys of a message that hold the assistant's reasoning before its answer. When a message is rendered,
transformers copies the value of one to others."""
WRITTEN = ("content", "tool_calls", *THOUGHTS)
"""Keys of a message whose values templates write."""
MEDIA = ("image", "images", "audio", "audios", "video", "videos")
"""Columns of media, which a text model cannot read."""
OPTIONAL = ("system", "tools", *MEDIA)
"""Optional columns of every form: system prompt, tools, and media, which are refused."""
UNTRAINED = ("train", "training", "loss")
"""Keys of a message that leave it out of the loss if they are false (axolotl, ms-swift), as weight 0 does."""
PAIR = ("user", "assistant")
"""Roles of a prompt and its answer."""


class Conversation(NamedTuple):
    """Messages, and the tools that they may call."""

    messages: list[Message]
    tools: list[dict[str, Any]]

    def to_json(self) -> str:
        """Return the conversation as JSON, which is the text of its row."""
        return json.dumps(self._asdict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Conversation:
        """Read a conversation that `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class ConversationForm:
    """A form of conversations in a table.

    Attributes:
        columns: columns that the form needs.
        read: returns the messages, given the values of the columns and the location of the row.
        optional: columns that it reads if the table has them.
    """

    name: str
    columns: tuple[str, ...]
    read: Callable[[Mapping[str, Any], str], list[Message]]
    optional: tuple[str, ...] = OPTIONAL

    def conversation(self, values: Mapping[str, Any], location: str) -> Conversation:
        """Read a row, which may lack optional columns of other rows. Raises DAT020 for an unreadable row."""
        if missing := [name for name in self.columns if name not in values]:
            message = f"the row has no column {printable(missing[0])!r}"
            raise ProjectError(CODE, message, "correct or remove the row", location)
        if media := next((name for name in MEDIA if values.get(name)), ""):
            expected = "text only: images and audio are not supported"
            raise _unreadable_error(f"column {media!r} is not empty", expected, location)
        system = values.get("system") or None
        if system is not None and not isinstance(system, str):
            raise _unreadable_error(f"system is {describe_kind(system)}", "a string", location)
        messages = with_system(self.read(values, location), system)
        return Conversation(messages, parse_tools(values.get("tools"), location))


def parse_messages(value: object, location: str) -> list[Message]:
    """Return the messages of a list in OpenAI's or ShareGPT's form, or its JSON text. Raises DAT020."""
    if isinstance(value, str):  # tables without nested values hold JSON
        value = _parse_json(value, "messages", location)
    if not isinstance(value, list | tuple) or not value:
        problem = "an empty list" if value == [] else describe_kind(value)
        raise _unreadable_error(f"the conversation is {problem}", "a list of messages", location)
    return [_parse_message(each, number, location) for number, each in enumerate(value, 1)]


def parse_tools(value: object, location: str) -> list[dict[str, Any]]:
    """Return tools from a list of objects, its JSON text, or null or blank text (no tools). Raises DAT020."""
    tools = _parse_json(value, "tools", location) if isinstance(value, str) and value.strip() else value or []
    if not isinstance(tools, list) or not all(isinstance(each, dict) for each in tools):
        raise _unreadable_error(
            f"tools is {describe_kind(tools)}", "a list of objects, or its JSON text", location
        )
    return [_without_null(tool) for tool in tools]


def with_system(messages: list[Message], prompt: str | None) -> list[Message]:
    """Return the messages after a system message `prompt`, unless it is None or they begin with one."""
    if prompt is None or messages[0]["role"] in SYSTEM_ROLES:
        return messages
    return [{"role": "system", "content": prompt}, *messages]


def without_weights(messages: Sequence[Message]) -> tuple[list[Message], frozenset[int]]:
    """Return the messages without weights, and the indices of messages with weight 0 (OpenAI's form)."""
    weightless = frozenset(
        location for location, message in enumerate(messages) if message.get("weight") == 0
    )
    return [
        {key: each for key, each in message.items() if key != "weight"} for message in messages
    ], weightless


def is_empty(message: Message) -> bool:
    """Return whether content, tool calls and thoughts of a message are all blank."""
    return not any(str(message.get(key) or "").strip() for key in WRITTEN)


def called_tools(message: Message) -> Iterator[str]:
    """Yield the names of the tools that a message calls."""
    for call in message.get("tool_calls", ()):
        function = call.get("function", call)
        yield str(function.get("name", "")) if isinstance(function, Mapping) else ""


def _parse_message(value: object, number: int, location: str) -> Message:
    if not isinstance(value, Mapping):
        raise _unreadable_error(
            f"message {number} is {describe_kind(value)}", "an object with role and content", location
        )
    message = _with_template_role(_without_null(value), number, location)
    for key in UNTRAINED:
        if not _is_trained(message, key, number, location):
            message["weight"] = 0
    if "weight" in message:
        _check_weight(message, number, location)
    if "function_call" in message:  # one call, as OpenAI had it before tool_calls
        message["tool_calls"] = [{"type": "function", "function": message.pop("function_call")}]
    if "tool_calls" in message:
        message["tool_calls"] = _parse_call_arguments(message["tool_calls"], number, location)
    content = message.get("content")
    if message["role"] == "function_call":
        message.pop("content", None)
        calls = _parse_call_arguments(_parse_tool_calls(content, number, location), number, location)
        return message | {"role": "assistant", "tool_calls": calls}
    if content is None:
        if message["role"] != "assistant" or not message.get("tool_calls"):
            raise _unreadable_error(f"message {number} has no content", "a string", location)
        message.pop("content", None)
        return message
    return message | {"content": _content_text(content, number, location)}


def _with_template_role(message: Message, number: int, location: str) -> Message:
    if "role" not in message and "from" in message:
        message = {"role": message.pop("from"), "content": message.pop("value", None), **message}
    known = f"one of {', '.join(ROLES)}, or a name of ShareGPT"
    if "role" not in message:
        raise _unreadable_error(f"message {number} has no role", known, location)
    role = str(message["role"])
    if role.lower() not in _ROLES:
        raise _unreadable_error(f"message {number} has role {printable(repr(role))[:40]}", known, location)
    return message | {"role": _ROLES[role.lower()]}


def _is_trained(message: Message, key: str, number: int, location: str) -> bool:
    value = message.get(key, True)
    if value not in (True, False):  # 1 and 0 are equal to these
        problem = f"message {number} has {key} {printable(repr(value)[:20])}"
        raise _unreadable_error(problem, "true or false", location)
    return bool(value)


def _check_weight(message: Message, number: int, location: str) -> None:
    weight, is_written = message["weight"], message["role"] in ("assistant", "function_call")
    if isinstance(weight, bool) or weight not in (0, 1):
        problem = f"message {number} has weight {printable(repr(weight)[:20])}"
        raise _unreadable_error(problem, "0 (not trained on) or 1", location)
    if weight and not is_written:
        problem = f"message {number} of role {message['role']} has weight 1"
        raise _unreadable_error(problem, "0: only messages of the assistant are trained on", location)


def _content_text(content: object, number: int, location: str) -> str:
    """Return content as one string: many templates would render a list of text parts as Python's repr.

    Raises `ProjectError` DAT020 for content other than text.
    """
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple) and all(isinstance(part, Mapping) for part in content):
        parts = [part.get("text") for part in content if part.get("type", "text") == "text"]
        if len(parts) == len(content) and all(isinstance(part, str) for part in parts):
            return "".join(map(str, parts))
        problem = f"message {number} has a part that is not text"
        raise _unreadable_error(problem, "text parts: images and audio are not supported", location)
    raise _unreadable_error(
        f"the content of message {number} is {describe_kind(content)}", "a string or text parts", location
    )


def _parse_call_arguments(calls: object, number: int, location: str) -> list[dict[str, Any]]:
    """Return tool calls with parsed arguments: templates would quote OpenAI's JSON strings again.

    Raises `ProjectError` DAT020 if they are not a list of objects, or if arguments are not JSON.
    """
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise _unreadable_error(
            f"tool_calls of message {number} is {describe_kind(calls)}", "a list of objects", location
        )
    for call in calls:
        function = call.get("function", call)
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            function["arguments"] = _parse_json(
                function["arguments"], f"a call of message {number}", location
            )
    return calls


def _parse_tool_calls(content: object, number: int, location: str) -> list[dict[str, Any]]:
    """Return the tool calls of a message of the ShareGPT form: JSON text, one call or a list of calls.

    Raises `ProjectError` DAT020 if the text is not JSON, or if a call names no function.
    """
    calls = (
        _parse_json(content, f"the call of message {number}", location)
        if isinstance(content, str)
        else content
    )
    calls = calls if isinstance(calls, list) else [calls]
    if not all(isinstance(call, dict) and "name" in call for call in calls):
        raise _unreadable_error(
            f"message {number} calls no function", "an object with name and arguments", location
        )
    return [{"type": "function", "function": call} for call in calls]


def _without_null(value: Any) -> Any:
    """Return a copy without keys that are null: columns of parquet have every key in every message."""
    if isinstance(value, Mapping):
        return {str(key): _without_null(each) for key, each in value.items() if each is not None}
    return [_without_null(each) for each in value] if isinstance(value, list | tuple) else value


def _parse_json(text: str, name: str, location: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable_error(
            f"{name} is a string that is not JSON", "text of json.dumps", location
        ) from error


def _unreadable_error(problem: str, expected: str, location: str) -> ProjectError:
    return ProjectError(CODE, f"{problem}, expected {expected}", "correct or remove the row", location)


def _column_reader(column: str) -> Callable[[Mapping[str, Any], str], list[Message]]:
    def read(values: Mapping[str, Any], location: str) -> list[Message]:
        return parse_messages(values[column], location)

    return read


def _read_completion(values: Mapping[str, Any], location: str) -> list[Message]:
    """Read a prompt, whose turns of the assistant are not supervised (as in TRL), and its completion."""
    parts = zip(("prompt", "completion"), PAIR, strict=True)
    prompt, completion = (
        [{"role": role, "content": values[column]}]
        if isinstance(values[column], str)
        else parse_messages(values[column], location)
        for column, role in parts
    )
    context = [each | {"weight": 0} if each["role"] == "assistant" else each for each in prompt]
    return [*context, *completion]


def _read_instruction(values: Mapping[str, Any], location: str) -> list[Message]:
    """Read earlier turns, an instruction, its input and the output (the Alpaca form).

    Raises `ProjectError` DAT020 if a column is not a string; input and history may be null.
    """
    for column in ("instruction", "output", "input"):
        value, is_needed = values.get(column), column in ("instruction", "output")
        if not isinstance(value, str) and (is_needed or value is not None):
            raise _unreadable_error(f"{column} is {describe_kind(value)}", "a string", location)
    context = values.get("input") or ""
    prompt = f"{values['instruction']}\n\n{context}" if context else values["instruction"]
    pairs = [*_parse_history(values.get("history"), location), (prompt, values["output"])]
    return [{"role": role, "content": text} for pair in pairs for role, text in zip(PAIR, pair, strict=True)]


def _parse_history(history: object, location: str) -> Sequence[Sequence[str]]:
    """Return the earlier turns of a row as pairs of a prompt and its answer; empty for null and ''.

    Raises `ProjectError` DAT020 if the history is not a list of pairs of strings, or JSON text of one.
    """
    pairs = (
        _parse_json(history, "history", location) if isinstance(history, str) and history else history or ()
    )
    if not isinstance(pairs, list | tuple):
        raise _unreadable_error(f"history is {describe_kind(pairs)}", "a list of pairs of strings", location)
    if not all(isinstance(pair, list | tuple) and [*map(type, pair)] == [str, str] for pair in pairs):
        raise _unreadable_error("history has items of another kind", "a list of pairs of strings", location)
    return pairs


def column_form(column: str) -> ConversationForm:
    """Return the form of a table whose column `column` holds lists of messages."""
    return ConversationForm(f"messages in column {column!r}", (column,), _column_reader(column))


FORMS = (
    *map(column_form, ("messages", "conversations", "conversation")),
    ConversationForm("prompt and completion", ("prompt", "completion"), _read_completion),
    ConversationForm(
        "instruction and output",
        ("instruction", "output"),
        _read_instruction,
        ("input", "history", *OPTIONAL),
    ),
)
"""Forms in search order: a table of messages may have a column `prompt` too."""


def detect_form(columns: Sequence[str] | Mapping[str, object]) -> ConversationForm | None:
    """Return the first of `FORMS` whose columns are all there, or None if no form fits."""
    return next((form for form in FORMS if all(name in columns for name in form.columns)), None)
