"""Replies of a server that speaks OpenAI's chat interface, such as vLLM, SGLang or `serve`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from neobert.errors import EXIT_USAGE, ProjectError
from neobert.generation.request import Message, Reason, ReplyEnd, Sampling
from neobert.printable import printable

TIMEOUT_S = 600.0
DATA, DONE = b"data:", b"[DONE]"
LONGEST_ERROR = 300


class _NoRedirect(HTTPRedirectHandler):
    """Makes a redirect an error: the key and the conversation are for the named server only."""

    def redirect_request(self, *_: Any) -> None:
        """Refuse the redirect."""


WITHOUT_REDIRECTS = build_opener(_NoRedirect)


def is_url(source: str) -> bool:
    """Return whether a source of replies is the URL of a server and not a folder."""
    return source.startswith(("http://", "https://"))


class ServerReplies:
    """A server at a URL, with or without `/v1` at its end."""

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
        """Ask for the server's models, unless one was named. Raises `ProjectError` if it does not answer."""
        if self._model is None:
            try:
                with self._open("/models") as response:
                    models = _json(response.read()).get("data")
            except HTTPError:
                models = None
            if not (isinstance(models, list) and models and isinstance(models[0], dict)):
                raise ProjectError("chat", "the server lists no model", "pass --model", self._url, EXIT_USAGE)
            self._model = str(models[0].get("id"))
        return self

    def __exit__(self, *error: object) -> None: ...

    def reply(self, messages: list[Message], sampling: Sampling) -> Iterator[str | ReplyEnd]:
        """Yield the text of a reply in pieces, then its end. Raises `ProjectError`."""
        body = {
            "model": self._model, "messages": messages, "stream": True, "seed": self._seed,
            "temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": sampling.max_tokens,
        }  # fmt: skip
        reason: Reason = "stop"
        try:
            with self._open("/chat/completions", body) as response:
                for choice in _choices(response):
                    if text := (choice.get("delta") or {}).get("content"):
                        yield str(text)
                    if choice.get("finish_reason") == "length":
                        reason = "length"
        except HTTPError as error:
            content = printable(error.read(LONGEST_ERROR).decode(errors="replace"))
            raise self._failure(f"the server returned HTTP {error.code}: {content}", "") from error
        except (OSError, HTTPException) as error:
            raise self._failure(printable(str(error))) from error
        yield ReplyEnd(reason=reason)

    def _open(self, path: str, content: dict[str, Any] | None = None) -> Any:
        body = None if content is None else json.dumps(content).encode()
        try:
            return WITHOUT_REDIRECTS.open(Request(self._url + path, body, self._headers), timeout=TIMEOUT_S)
        except HTTPError:
            raise
        except (OSError, HTTPException, ValueError) as error:  # of a URL without a host: ValueError
            raise self._failure(printable(str(getattr(error, "reason", error)))) from error

    def _failure(self, message: str, hint: str = "check that the server is running") -> ProjectError:
        return ProjectError("chat", message, hint, printable(self._url), EXIT_USAGE)


def _choices(response: Any) -> Iterator[dict[str, Any]]:
    """Yield the first choice of each event of a stream."""
    for line in response:
        if not line.startswith(DATA) or line[len(DATA) :].strip() == DONE:
            continue
        choices = _json(line[len(DATA) :]).get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            yield choices[0]


def _json(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise ProjectError("chat", "the server's response is not JSON", exit_code=EXIT_USAGE) from error
    return value if isinstance(value, dict) else {}
