"""`chat`: a conversation in the terminal with a model folder or a server with OpenAI's interface."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from launcher.io.files import expand_user
from launcher.process.json_child import running_json_child
from launcher.process.termination import interrupt_once
from launcher.terminal import console
from launcher.terminal.activity import activity
from neobert.errors import EXIT_OK, EXIT_TRAINING_FAILED, EXIT_USAGE, ProjectError, read_error_file
from neobert.generation.request import Message, Reason, ReplyEnd, Sampling
from neobert.printable import printable
from neobert.runfiles.model_folder import require_model_folder

CLEAR, EXIT, ASK = "/clear", "/exit", "/help"
HELP = f"Ctrl-C ends a reply, {CLEAR} begins a new conversation, {EXIT} or Ctrl-D ends the chat"

MODULE = "neobert.generation"
HINT = "see the output above"

TIMEOUT_S = 600.0
DATA, DONE = b"data:", b"[DONE]"
LONGEST_ERROR = 300


class ReplySource(Protocol):
    """Source of replies: a model's folder, or a server."""

    def __enter__(self) -> ReplySource: ...

    def __exit__(self, *error: object) -> object: ...

    def reply(self, messages: list[Message], sampling: Sampling) -> Iterator[str | ReplyEnd]:
        """Yield the text of a reply piece by piece, then a `ReplyEnd`."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Model name on a server, or None for the first one; environment variable with the API key, or None."""

    model: str | None
    api_key_variable: str | None


@dataclass(slots=True)
class Conversation:
    """Messages of a conversation; the system prompt is first, unless it is empty."""

    system: str
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove all messages but the system prompt."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []


def run(
    source: str,
    sampling: Sampling,
    *,
    system: str,
    seed: int,
    server: ServerSettings,
    device: str | None,
) -> int:
    """Reply to the lines of standard input until it ends, or until `/exit`; return 0.

    Args:
        source: model folder, checkpoint, run directory, or URL of a server.
        device: "cpu" or "cuda" for a folder; None selects the default.
    """
    conversation = Conversation(system)
    if source.startswith(("http://", "https://")):
        replies: ReplySource = ServerReplies(source, server.model, server.api_key_variable, seed)
    else:
        replies = FolderReplies(expand_user(Path(source)), seed, device)
    with replies:
        if sys.stdin.isatty():
            console.log(HELP)
        _chat_loop(conversation, replies, sampling)
    return EXIT_OK


def _chat_loop(conversation: Conversation, replies: ReplySource, sampling: Sampling) -> None:
    """Reply to each line of standard input, until its end or `/exit`."""
    on_terminal = sys.stdin.isatty()
    while True:
        try:
            if on_terminal:
                interrupt_once()
            line = input("> " if on_terminal else "").strip()
            if line == EXIT:
                return
            if line:
                _process_line(line, conversation, replies, sampling)
        except EOFError:
            return
        except KeyboardInterrupt:
            if not on_terminal:
                raise
            console.write("")  # as a shell does: another prompt on a new line
        except UnicodeDecodeError:
            console.log("error: the line is not UTF-8 text")


def _process_line(line: str, conversation: Conversation, replies: ReplySource, sampling: Sampling) -> None:
    """Run a command such as `/clear`, or print the reply to a line and add both to the conversation.

    On a terminal an error is printed, and neither is added.
    """
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


class FolderReplies:
    """A child process that has loaded the model, and replies until the `with` block ends."""

    def __init__(self, folder: Path, seed: int, device: str | None) -> None:
        require_model_folder(folder)
        self._request = {"folder": str(folder.absolute()), "seed": seed, "device": device, "dtype": None}
        self._open = ExitStack()

    def __enter__(self) -> FolderReplies:
        """Start the child and wait until the model is loaded. Raises the `ProjectError` that it reports."""
        with ExitStack() as opening, activity("loading the model"):
            child = running_json_child(MODULE, self._request, stdin=subprocess.PIPE)
            self._child, self._error_file = opening.enter_context(child)
            self._read_line()
            self._open = opening.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()
        self._open.close()

    def reply(self, messages: list[Message], sampling: Sampling) -> Iterator[str | ReplyEnd]:
        """Yield the text of a reply piece by piece, then a `ReplyEnd`; Ctrl-C ends the reply early.

        Raises the `ProjectError` that the child reports.
        """
        assert self._child.stdin is not None
        request = {"messages": messages, "sampling": asdict(sampling)}
        with _forward_interrupts(self._child):
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
            while "text" in (answer := self._read_line()):
                yield answer["text"]
        if "error" in answer:
            raise ProjectError("chat", answer["error"]["message"], answer["error"]["hint"])
        yield ReplyEnd(**answer["ending"])

    def _read_line(self) -> dict[str, Any]:
        """Return the child's next line as JSON. Raises `ProjectError` if the child has ended."""
        assert self._child.stdout is not None
        if line := self._child.stdout.readline():
            return dict(json.loads(line))
        self._child.wait()
        if (error := read_error_file(self._error_file)) is not None:
            raise error
        message = f"{MODULE} ended with exit code {self._child.returncode}"
        raise ProjectError("child-failed", message, HINT, exit_code=EXIT_TRAINING_FAILED)


@contextmanager
def _forward_interrupts(child: subprocess.Popen[bytes]) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, lambda *_: child.send_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _RedirectRefuser(HTTPRedirectHandler):
    """Handler that follows no redirect, because key and conversation are meant for one server only."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, which makes urllib raise an HTTPError."""


WITHOUT_REDIRECTS = build_opener(_RedirectRefuser)


class ServerReplies:
    """Replies from a server with an OpenAI-compatible API; its URL may end in `/v1`."""

    def __init__(self, url: str, model: str | None, api_key_variable: str | None, seed: int) -> None:
        path = urlsplit(url).path.rstrip("/")
        self._url = url.rstrip("/") + ("" if path.endswith("/v1") else "/v1")
        self._seed, self._model = seed, model
        self._headers = {"Content-Type": "application/json"}
        if api_key_variable is not None:
            key = os.environ.get(api_key_variable)
            if not key:
                message = f"the environment variable {printable(api_key_variable)} is not set"
                raise ProjectError("chat", message, exit_code=EXIT_USAGE)
            self._headers["Authorization"] = f"Bearer {key}"

    def __enter__(self) -> ServerReplies:
        """Select the first listed model unless one is named. Raises `ProjectError` if there is none."""
        if self._model is None:
            try:
                with self._open_url("/models") as response:
                    models = _parse_json_object(response.read()).get("data")
            except HTTPError:
                models = None
            if not (isinstance(models, list) and models and isinstance(models[0], dict)):
                hint = "pass --model NAME; `neobert-launch serve` prints the name of its model"
                raise ProjectError("chat", "the server does not list a model", hint, self._url, EXIT_USAGE)
            self._model = str(models[0].get("id"))
        return self

    def __exit__(self, *error: object) -> None: ...

    def reply(self, messages: list[Message], sampling: Sampling) -> Iterator[str | ReplyEnd]:
        """Yield the text of a reply piece by piece, then a `ReplyEnd`.

        Raises `ProjectError` if the request fails.
        """
        body = {
            "model": self._model, "messages": messages, "stream": True, "seed": self._seed,
            "temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": sampling.max_tokens,
        }  # fmt: skip
        reason: Reason = "stop"
        try:
            with self._open_url("/chat/completions", body) as response:
                for choice in _first_choices(response):
                    if text := (choice.get("delta") or {}).get("content"):
                        yield str(text)
                    if choice.get("finish_reason") == "length":
                        reason = "length"
        except HTTPError as error:
            content = printable(error.read(LONGEST_ERROR).decode(errors="replace"))
            raise self._server_error(f"the server returned HTTP {error.code}: {content}", "") from error
        except (OSError, HTTPException) as error:
            raise self._server_error(printable(str(error))) from error
        yield ReplyEnd(reason=reason)

    def _open_url(self, path: str, content: dict[str, Any] | None = None) -> Any:
        body = None if content is None else json.dumps(content).encode()
        try:
            return WITHOUT_REDIRECTS.open(Request(self._url + path, body, self._headers), timeout=TIMEOUT_S)
        except HTTPError:
            raise
        except (OSError, HTTPException, ValueError) as error:  # of a URL without a host: ValueError
            raise self._server_error(printable(str(getattr(error, "reason", error)))) from error

    def _server_error(self, message: str, hint: str = "check that the server is running") -> ProjectError:
        return ProjectError("chat", message, hint, printable(self._url), EXIT_USAGE)


def _first_choices(response: Any) -> Iterator[dict[str, Any]]:
    """Yield the first choice of each event in a stream; events without a choice are skipped."""
    for line in response:
        if not line.startswith(DATA) or line[len(DATA) :].strip() == DONE:
            continue
        choices = _parse_json_object(line[len(DATA) :]).get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            yield choices[0]


def _parse_json_object(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise ProjectError("chat", "the server's response is not JSON", exit_code=EXIT_USAGE) from error
    return value if isinstance(value, dict) else {}
