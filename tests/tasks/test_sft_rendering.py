"""The child process that renders: templates that do not end, need memory, or are none."""

from __future__ import annotations

import signal
import time

import pytest

from neobert.errors import ProjectError
from neobert.runfiles.conversation_faults import Fault
from neobert.tasks.sft import template as template_module
from neobert.tasks.sft.conversation import Conversation
from neobert.tasks.sft.template import ChatTemplate
from tests.tasks import sft_templates as own
from tests.tasks.sft_templates import END, chat_template, talk

HELLO = [Conversation(talk("Hi", "Hello"), [])]


def refused(template: ChatTemplate) -> ProjectError:
    with pytest.raises(ProjectError) as caught:
        list(template.render(HELLO))
    assert (caught.value.code, caught.value.place) == ("TOK001", "tokenizer.chat_template")
    return caught.value


def test_conversations_are_rendered_and_an_endless_template_is_ended() -> None:
    (found,) = chat_template(own.PLAIN).render(HELLO)
    assert [found.text[start:stop] for start, stop in found.spans] == [f"Hello{END}"]
    began = time.monotonic()
    error = refused(chat_template(own.ENDLESS, time_limit_s=0.5))
    limit = "the chat template takes more than 0.5 s (limit) for a conversation of 2 messages: 'Hi'"
    assert (error.message, error.hint.endswith(", or split the conversation")) == (limit, True)
    assert time.monotonic() - began < 5 + 0.5


def test_weights_and_tools_reach_the_child_and_what_is_left_out_comes_back() -> None:
    weighted = [{**each, "weight": 0} for each in talk("Hi", "Draft")] + talk("Again", "Final")
    tools = [{"type": "function", "function": {"name": "now"}}] * 2
    (found,) = chat_template(own.of_messages("{{ m | tojson ~ '<|end|>' }}")).render(
        [Conversation(weighted, tools)]
    )
    assert "weight" not in found.text
    assert found.left_out == {"weightless": 1, "empty": 0}
    reason = "the template leaves out the tools of the conversation (2 tools)"
    assert (Fault.TOOLS, reason) in found.faults
    written = chat_template("{{ tools | tojson if tools }}" + own.PLAIN)
    assert [each.faults for each in written.render([Conversation(weighted, tools)])] == [[]]


def test_memory_is_limited_and_a_broken_template_is_named() -> None:
    assert "needs more than 2 GiB of memory" in refused(chat_template("{{ 'x' * 2 ** 33 }}")).message
    broken = refused(chat_template("{% for %}")).message
    assert broken.startswith("the chat template cannot be used: TemplateSyntaxError")
    sandboxed = own.of_messages("{{ m.__class__.__mro__ }}")
    (found,) = chat_template(sandboxed).render(HELLO)
    assert "SecurityError" in found.faults[0][1]


def test_the_child_ends_with_the_template_and_with_its_parent() -> None:
    template = chat_template(own.TRIMMED)
    process = template_module._child_of(template)._process
    for _ in range(2):
        next(template.render(HELLO * 2))  # an encoder does not ask for more than it needs
        assert template_module._child_of(template)._process is process
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(10) == 0
    other = chat_template(own.TRIMMED)
    list(other.render(HELLO))
    process = template_module._child_of(other)._process
    del other
    assert process.returncode == -signal.SIGKILL
