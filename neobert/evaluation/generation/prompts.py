"""Prompts from a file: one text per line, or JSON lines with `prompt` or `messages`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neobert.errors import EXIT_USAGE, ProjectError
from neobert.generation.request import Message
from neobert.printable import printable

ROLES = ("system", "developer", "user", "assistant", "tool")
FORMS = (
    "pass a .txt file with one prompt per line, or a .jsonl file with "
    '{"prompt": ...} or {"messages": [...]} per line'
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue, or a conversation to reply to (then `text` is empty)."""

    text: str = ""
    messages: list[Message] = field(default_factory=list)


def read_prompts(path: Path) -> list[Prompt]:
    """Read the prompts of a file. Raises `ProjectError` with the line of the first invalid prompt."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # other line ends may be inside a text
    except (OSError, ValueError) as error:
        message = f"the file cannot be read: {printable(str(error))}"
        raise _prompt_error(message, str(path), "pass a file in UTF-8") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if path.suffix == ".jsonl":
        prompts = [_parse_json_prompt(line, f"{path}:{number}") for number, line in numbered]
    else:
        prompts = [Prompt(line) for _, line in numbered]
    if not prompts:
        raise _prompt_error("the file has no prompts", str(path))
    return prompts


def _parse_json_prompt(line: str, location: str) -> Prompt:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _prompt_error(f"the line is not JSON: {printable(str(error))}", location) from error
    text, messages = (row.get("prompt"), row.get("messages")) if isinstance(row, dict) else (None, None)
    if isinstance(text, str) and text and messages is None:
        return Prompt(text)
    if isinstance(messages, list) and messages and text is None:
        return Prompt(
            messages=[_parse_message(each, number, location) for number, each in enumerate(messages, 1)]
        )
    raise _prompt_error("the line needs a prompt or messages, not empty and not both", location)


def _parse_message(value: Any, number: int, location: str) -> Message:
    role, content = (value.get("role"), value.get("content")) if isinstance(value, dict) else (None, None)
    if role not in ROLES:
        message = f"the role of message {number} is not one of {', '.join(ROLES)}"
        raise _prompt_error(message, location, "correct the role of the message")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not texts or not all(isinstance(text, str) for text in texts):
        hint = "write the content as a string, or as a list of text parts"
        raise _prompt_error(f"the content of message {number} is not text", location, hint)
    return {"role": role, "content": "".join(map(str, texts))}


def _prompt_error(message: str, location: str, hint: str = FORMS) -> ProjectError:
    return ProjectError("prompts", message, hint, location, EXIT_USAGE)
