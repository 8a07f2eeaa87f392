"""Child program that renders conversations with a chat template, which is untrusted code.

Usage: `python -m neobert.tasks.sft.rendering`. Reads JSON lines: first the template, then one conversation a
line; writes one JSON line for each. transformers' sandbox keeps a template from files and attributes, but
bounds neither time nor memory: here the kernel kills a template that does not end, and memory is limited.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import IO, Any

from neobert.plurals import counted
from neobert.printable import printable
from neobert.runfiles.conversation_faults import Fault
from neobert.tasks.sft.contents import render_contents
from neobert.tasks.sft.conversation import THOUGHTS, Message, without_weights
from neobert.tasks.sft.rendered import Span, SupervisedText, TemplateFailedError
from neobert.tasks.sft.spans import supervise

TIME_LIMIT_S = 10.0
MEMORY_LIMIT_BYTES = 2 << 30
OUTPUT_FACTOR, OUTPUT_BYTES = 8, 64 << 10
MANY_MESSAGES = 50
OTHER_DATE = datetime(2001, 9, 9)


@dataclass(frozen=True, slots=True)
class Request:
    """The fields of `ChatTemplate`, the first line of the input."""

    template: str
    special_tokens: dict[str, Any]
    special: tuple[str, ...]
    date: str | None
    supervise: Any
    turns: Any
    time_limit_s: float


class Template:
    """A compiled template for the tools of one conversation."""

    def __init__(self, request: Request) -> None:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        self.request = request
        self.end, self.special = request.special_tokens.get("eos_token", ""), tuple(request.special)
        self.compiled = _compile_jinja_template(request.template)
        self.set_date(datetime.fromisoformat(request.date) if request.date else datetime.now())
        self.tools: list[dict[str, Any]] | None = None
        self.max_characters = OUTPUT_BYTES
        self.has_marks = "endgeneration" in request.template
        self.is_direct = False
        self.reads_clock = "strftime_now" in request.template and request.date is None

    def set_date(self, date: datetime) -> None:
        """Fix the date that the template reads, so that the text does not change from day to day."""
        self.compiled.environment.globals["strftime_now"] = date.strftime

    def prepare(self, conversation: dict[str, Any], messages: Sequence[Message]) -> None:
        """Set the tools and the output limit of a conversation, and decide how `text` renders its messages.

        The library copies all messages for each call, which takes four fifths of the time of long
        conversations. The copies are equal unless a message has reasoning, which gets further names.
        """
        self.tools = conversation["tools"] or None
        self.max_characters = OUTPUT_FACTOR * len(json.dumps(conversation)) + OUTPUT_BYTES
        self.is_direct = False
        if len(messages) >= MANY_MESSAGES and not any(key in each for each in messages for key in THOUGHTS):
            with suppress(TemplateFailedError):
                self.is_direct = self.text(messages) == self._render_directly(messages, prompt=False)

    def text(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        """Render messages (see `Renderer.text`)."""
        if self.is_direct:
            return self._render_directly(messages, prompt=prompt)
        return self._render(messages, prompt=prompt, marks=False)[0]

    def _render_directly(self, messages: Sequence[Message], *, prompt: bool) -> str:
        """Render messages of JSON without the library, with the arguments that it passes."""
        with self._convert_template_errors():
            given = {"messages": [*messages], "tools": self.tools, "documents": None}
            text = str(
                self.compiled.render(**given, add_generation_prompt=prompt, **self.request.special_tokens)
            )
        return self._require_short_text(text)

    def render_marked(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """Render messages with marks (see `Renderer.render_marked`)."""
        return self._render(messages, prompt=False, marks=True)

    def _render(self, messages: Sequence[Message], *, prompt: bool, marks: bool) -> tuple[str, list[Span]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        with self._convert_template_errors():
            texts, spans = render_jinja_template(
                [list(messages)], self.tools, chat_template=self.request.template,
                return_assistant_tokens_mask=marks, add_generation_prompt=prompt,
                **self.request.special_tokens,
            )  # fmt: skip
        return self._require_short_text(texts[0]), [Span(*each) for each in (spans[0] if marks else ())]

    @contextmanager
    def _convert_template_errors(self) -> Iterator[None]:
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:  # whatever a template raises is a fault of the template
            raise TemplateFailedError(printable(f"{type(error).__name__}: {error}"[:300])) from error

    def _require_short_text(self, text: str) -> str:
        if len(text) > self.max_characters:
            limit = f"limit {self.max_characters:,}: 8 times the content and 64 KiB"
            raise TemplateFailedError(f"its output has {len(text):,} characters ({limit})")
        return text


def render_conversation(template: Template, conversation: dict[str, Any]) -> SupervisedText:
    """Render one conversation, and find its supervised text."""
    request = template.request
    messages, weightless = without_weights(conversation["messages"])
    template.prepare(conversation, messages)
    found = supervise(messages, template, request.supervise, request.turns, weightless)
    if template.tools and found.text and found.text == _text_without_tools(messages, template):
        num_tools = counted(len(template.tools), "tool")
        reason = f"the template leaves out the tools of the conversation ({num_tools})"
        found.faults.append((Fault.TOOLS, reason))
    if template.reads_clock and found.text:
        template.set_date(OTHER_DATE)
        with suppress(TemplateFailedError):
            if template.text(messages) != found.text:
                reason = "the text has the date of the day on which it is rendered (strftime_now)"
                found.faults.append((Fault.CLOCK, reason))
        template.set_date(datetime.now())
    return found


def _text_without_tools(messages: Sequence[Message], template: Template) -> str:
    tools, template.tools = template.tools, None
    try:
        return render_contents(messages, template)[1]
    except TemplateFailedError:
        return ""
    finally:
        template.tools = tools


@contextmanager
def _limit_cpu_time(time_limit_s: float) -> Iterator[None]:
    """End this process if the block exceeds a limit of CPU time. A wall-clock limit would also reject valid
    templates while the process waits for a core or is suspended.
    """
    signal.setitimer(signal.ITIMER_PROF, time_limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory() -> None:
    """Allow `MEMORY_LIMIT_BYTES` more of address space than the imported libraries have."""
    import resource

    with suppress(OSError, ValueError):  # no /proc, or a lower limit of the system
        with open("/proc/self/statm", encoding="ascii") as handle:
            used = int(handle.read().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_LIMIT_BYTES, hard))


def main(lines: IO[str], output: IO[str]) -> int:
    """Write a JSON line per conversation: a `SupervisedText`, or a fatal error. Returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the input ends when the parent does
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # a parent may ignore it, which children inherit
    import transformers.utils.chat_template_utils  # noqa: F401  (before time and memory are limited)

    request = Request(**json.loads(next(lines)))
    template: Template | None = None
    _limit_memory()
    for line in lines:
        conversation = json.loads(line)
        try:
            with _limit_cpu_time(request.time_limit_s):
                template = template or Template(request)  # a template is run in part to compile it
                answer: dict[str, Any] = asdict(render_conversation(template, conversation))
        except MemoryError:
            answer = {"fatal": f"needs more than {MEMORY_LIMIT_BYTES >> 30} GiB of memory"}
        except Exception as error:  # a template that is not a Jinja template
            answer = {"fatal": f"cannot be used: {type(error).__name__}: {error}"[:300]}
        output.write(json.dumps(answer) + "\n")
        output.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin, sys.stdout))
