"""The chat template of a run, and the child process that renders conversations with it. Imports no torch."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import IO, Any
from weakref import WeakKeyDictionary, finalize

from neobert.errors import ProjectError
from neobert.plurals import counted
from neobert.printable import printable
from neobert.runfiles.conversation_faults import Fault
from neobert.tasks.sft.conversation import Conversation
from neobert.tasks.sft.rendered import SHOWN, Span, Supervise, SupervisedText, Turns
from neobert.tasks.sft.rendering import TIME_LIMIT_S

CODE, PLACE = "TOK001", "tokenizer.chat_template"
HINT = "set tokenizer.chat_template to a file with another template"
MARKED = re.compile("([\ufdd0\ufdd1])")
"""Noncharacters around control tokens in contents, which no text has."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class ChatTemplate:
    """A chat template, and how conversations are rendered with it.

    Attributes:
        template: the Jinja template.
        special_tokens: names and texts of special tokens, which templates read, such as bos_token.
        special: texts of all special tokens.
        time_limit_s: limit of the CPU time of one conversation.
        date: ISO date that the template gets as today's; None: the clock's.
    """

    template: str
    special_tokens: tuple[tuple[str, str], ...]
    special: tuple[str, ...]
    date: str | None
    supervise: Supervise
    turns: Turns
    time_limit_s: float = TIME_LIMIT_S

    def render(self, conversations: Iterable[Conversation]) -> Iterator[SupervisedText]:
        """Render conversations in a child process. Raises TOK001 for a template that cannot be used."""
        child = _start_process(self)
        try:
            for conversation in conversations:
                yield child.render(conversation)
        except GeneratorExit:  # the caller has read what it needs, and renders more later
            raise
        except BaseException:
            _children.pop(self, None)
            child.stop()
            raise


class _RenderProcess:
    """A child process that renders, one conversation at a time."""

    def __init__(self, template: ChatTemplate) -> None:
        # -P: a file of the working directory must not replace a module.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "neobert.tasks.sft.rendering"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="ascii",
            env={**os.environ, "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
        self._time_limit_s = template.time_limit_s
        self._send_line(asdict(template) | {"special_tokens": dict(template.special_tokens)})

    def render(self, conversation: Conversation) -> SupervisedText:
        self._send_line(conversation._asdict())
        line = self._process_output.readline()
        if not line:
            raise self._ended_error(conversation)
        answer: dict[str, Any] = json.loads(line)
        if "fatal" in answer:
            raise ProjectError(CODE, f"the chat template {answer['fatal']}", HINT, PLACE)
        return SupervisedText(
            answer["text"],
            [Span(*each) for each in answer["spans"]],
            answer["ends"],
            [(Fault(kind), reason) for kind, reason in answer["faults"]],
            answer["num_turns"],
            answer["left_out"],
        )

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    @property
    def _process_output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _send_line(self, value: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended, which `render` reports
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()

    def _ended_error(self, conversation: Conversation) -> ProjectError:
        code = self._process.wait()
        if code == -signal.SIGPROF:
            beginning = printable(str(conversation.messages[0].get("content", ""))[:SHOWN])
            size = counted(len(conversation.messages), "message")
            limit = f"{self._time_limit_s:g} s of CPU time (limit)"
            message = f"the chat template takes more than {limit} for a conversation of {size}: {beginning!r}"
            return ProjectError(CODE, message, f"{HINT}, or split the conversation", PLACE)
        message = f"the process that renders conversations ended with code {code}; its output is above"
        return ProjectError("DAT009", message, "run the command again", PLACE)


_children: WeakKeyDictionary[ChatTemplate, _RenderProcess] = WeakKeyDictionary()


def _start_process(template: ChatTemplate) -> _RenderProcess:
    """Return the running child of a template, or start one. It ends with the template object."""
    child = _children.get(template)
    if child is None:
        child = _children[template] = _RenderProcess(template)
        finalize(template, child.stop)
    return child


def mark_tokens(text: str, tokens: re.Pattern[str]) -> str:
    """Surround control tokens in a text by `MARKED`, so that they are tokenized as plain text."""
    return tokens.sub("\ufdd0\\g<0>\ufdd1", MARKED.sub("", text))


def remove_marks(conversation: SupervisedText) -> tuple[SupervisedText, list[Span]]:
    """Return a conversation without the characters that `mark_tokens` added, and the marked spans."""
    pieces = MARKED.split(conversation.text)
    if len(pieces) == 1:
        return conversation, []
    marks = [match.start() for match in MARKED.finditer(conversation.text)]
    plain, start, length = [], None, 0
    for piece in pieces:
        if piece == "\ufdd0":
            start = length
        elif piece == "\ufdd1":
            plain += [] if start is None else [Span(start, length)]
            start = None
        else:
            length += len(piece)

    def moved(at: int) -> int:
        return at - sum(place < at for place in marks)

    spans = [Span(moved(start), moved(stop)) for start, stop in conversation.spans]
    text = MARKED.sub("", conversation.text)
    return replace(conversation, text=text, spans=spans, ends=[*map(moved, conversation.ends)]), plain
