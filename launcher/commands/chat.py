"""`chat`: a conversation in the terminal with a model folder or a server with OpenAI's interface."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from launcher.commands.chat_folder import FolderReplies
from launcher.commands.chat_server import ServerReplies, is_url
from launcher.io.files import expanded
from launcher.process.termination import interrupt_once
from launcher.terminal import console
from neobert.errors import EXIT_OK, ProjectError
from neobert.generation.request import Message, ReplyEnd, Sampling

CLEAR, EXIT, ASK = "/clear", "/exit", "/help"
HELP = f"Ctrl-C ends a reply, {CLEAR} begins a new conversation, {EXIT} or Ctrl-D ends the chat"


class Replies(Protocol):
    """Source of replies: a model's folder, or a server."""

    def __enter__(self) -> Replies: ...

    def __exit__(self, *error: object) -> object: ...

    def reply(self, messages: list[Message], sampling: Sampling) -> Iterator[str | ReplyEnd]:
        """Yield the text of a reply in pieces, then its end. Ctrl-C ends it early, or is raised."""


@dataclass(frozen=True, slots=True)
class Server:
    """Name of the model of a server, and of the environment variable with its key."""

    model: str | None
    api_key_variable: str | None


@dataclass(slots=True)
class Conversation:
    """Messages so far, with the system prompt first."""

    system: str
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Keep the system prompt only."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []


def run(
    source: str,
    sampling: Sampling,
    *,
    system: str,
    seed: int,
    server: Server,
    device: str | None,
) -> int:
    """Talk until standard input ends.

    source: model folder, checkpoint, run directory, or URL of a server.
    device: "cpu" or "cuda" for a folder; None: the default.
    """
    conversation = Conversation(system)
    if is_url(source):
        replies: Replies = ServerReplies(source, server.model, server.api_key_variable, seed)
    else:
        replies = FolderReplies(expanded(Path(source)), seed, device)
    with replies:
        if sys.stdin.isatty():
            console.log(HELP)
        _talk(conversation, replies, sampling)
    return EXIT_OK


def _talk(conversation: Conversation, replies: Replies, sampling: Sampling) -> None:
    """Answer the lines of standard input until it ends, or `/exit`."""
    on_terminal = sys.stdin.isatty()
    while True:
        try:
            if on_terminal:
                interrupt_once()
            line = input("> " if on_terminal else "").strip()
            if line == EXIT:
                return
            if line:
                _answer(line, conversation, replies, sampling)
        except EOFError:
            return
        except KeyboardInterrupt:
            if not on_terminal:
                raise
            console.write("")  # as a shell does: another prompt on a new line
        except UnicodeDecodeError:
            console.log("error: the line is not UTF-8 text")


def _answer(line: str, conversation: Conversation, replies: Replies, sampling: Sampling) -> None:
    """Print the reply to a line, and keep both; a refused conversation keeps neither."""
    if line == CLEAR:
        conversation.clear()
        return
    if line == ASK:
        console.log(HELP)
        return
    messages: list[Message] = [*conversation.messages, {"role": "user", "content": line}]
    text, end = "", None
    try:
        for piece in replies.reply(messages, sampling):
            if isinstance(piece, ReplyEnd):
                end = piece
            else:
                text += piece
                console.write_part(piece)
    except KeyboardInterrupt:  # while a server's reply is awaited
        end = ReplyEnd(reason="interrupted")
    except ProjectError as error:
        if not sys.stdin.isatty():
            raise
        console.log(console.describe_error(error))
        return
    console.write("")
    if end is not None and end.reason != "stop":
        why = "interrupted" if end.reason == "interrupted" else "the token limit; see --max-tokens"
        console.log(f"[ended: {why}]")
    conversation.messages = [*messages, {"role": "assistant", "content": text}]
