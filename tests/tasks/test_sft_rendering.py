"""The child process that renders: templates that do not end, need memory, or are none."""

import os
import signal
import threading

import pytest

from neobert.errors import ProjectError
from neobert.runfiles.conversation_faults import Fault
from neobert.tasks.sft import rendering
from neobert.tasks.sft import template as template_module
from neobert.tasks.sft.conversation import Conversation
from neobert.tasks.sft.template import ChatTemplate
from tests.tasks import sft_templates as own
from tests.tasks.sft_templates import END, chat_template, talk

warm = pytest.mark.usefixtures("warm")

TEMPLATES = {name: text for name, text in vars(own).items() if isinstance(text, str) and "{%" in text}
HELLO = [Conversation(talk("Hi", "Hello"), [])]


def refused(template: ChatTemplate) -> ProjectError:
    with pytest.raises(ProjectError) as caught:
        list(template.render(HELLO))
    assert (caught.value.code, caught.value.place) == ("TOK001", "tokenizer.chat_template")
    return caught.value


@warm
def test_conversations_are_rendered_and_an_endless_template_is_ended():
    (found,) = chat_template(own.PLAIN).render(HELLO)
    assert [found.text[start:stop] for start, stop in found.spans] == [f"Hello{END}"]
    error = refused(chat_template(own.ENDLESS, time_limit_s=0.5))
    limit = "takes more than 0.5 s of CPU time (limit) for a conversation of 2 messages: 'Hi'"
    assert error.message == f"the chat template {limit}"
    assert error.hint.endswith(", or split the conversation")


def test_a_process_that_waits_for_a_core_does_not_use_up_the_time_of_its_template():
    """Not a fork of the warm interpreter, which would not be suspended with the process that waits for it."""
    slow = "{% for _ in range(10) %}{% for _ in range(30000) %}{% endfor %}{% endfor %}"  # 50 ms
    template = chat_template(own.PLAIN + slow, time_limit_s=0.5)
    list(template.render(HELLO))
    pid, has_ended = template_module._start_process(template)._process.pid, threading.Event()

    def suspend() -> None:
        while not has_ended.wait(0.03):
            os.kill(pid, signal.SIGSTOP)
            has_ended.wait(0.6)
            os.kill(pid, signal.SIGCONT)

    suspending = threading.Thread(target=suspend)
    suspending.start()
    try:
        assert len(list(template.render(HELLO * 3))) == 3
    finally:
        has_ended.set()
        suspending.join()


@warm
def test_weights_and_tools_reach_the_child_and_what_is_left_out_comes_back():
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


@warm
def test_memory_is_limited_and_a_broken_template_is_named():
    assert "needs more than 2 GiB of memory" in refused(chat_template("{{ 'x' * 2 ** 33 }}")).message
    broken = refused(chat_template("{% for %}")).message
    assert broken.startswith("the chat template cannot be used: TemplateSyntaxError")
    sandboxed = own.of_messages("{{ m.__class__.__mro__ }}")
    (found,) = chat_template(sandboxed).render(HELLO)
    assert "SecurityError" in found.faults[0][1]


@warm
def test_the_child_ends_with_the_template_and_with_its_parent():
    template = chat_template(own.TRIMMED)
    process = template_module._start_process(template)._process
    for _ in range(2):
        next(template.render(HELLO * 2))  # an encoder does not ask for more than it needs
        assert template_module._start_process(template)._process is process
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0
    other = chat_template(own.TRIMMED)
    list(other.render(HELLO))
    process = template_module._start_process(other)._process
    del other
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("key", ["content", "reasoning_content"])
@pytest.mark.parametrize("name", sorted({*TEMPLATES} - {"ENDLESS"}))
def test_long_conversations_are_rendered_as_short_ones(name, key, monkeypatch):
    messages = [{**each, key: each["content"]} for each in talk("Hi", "Hello", "And now?", "Bye")]
    request = rendering.Request(TEMPLATES[name], {"eos_token": END}, own.SPECIAL, None, "auto", "all", 9.0)
    answers = []
    for many in (0, 99):
        monkeypatch.setattr(rendering, "MANY_MESSAGES", many)
        template = rendering.Template(request)
        answers.append(rendering.render_conversation(template, {"messages": messages, "tools": []}))
        has_failed = Fault.FAILED in dict(answers[0].faults)
        assert template.is_direct is (not many and key == "content" and not has_failed)
    assert answers[0] == answers[1]
