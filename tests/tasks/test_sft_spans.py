"""Supervised text of conversations by templates of every behaviour."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.runfiles.conversation_faults import Fault
from neobert.tasks.sft.conversation import THOUGHTS
from neobert.tasks.sft.rendered import Supervise, SupervisedText, Turns
from neobert.tasks.sft.spans import supervise
from tests.tasks import sft_templates as own
from tests.tasks.sft_templates import END, SPECIAL, renderer, talk

TALK = talk("Two and two?", "Four.", "And three?", "Seven.")


def found_by(
    template: str, by: Supervise = "auto", turns: Turns = "all", messages: Any = TALK
) -> SupervisedText:
    return supervise(messages, renderer(template), by, turns)


def texts(found: SupervisedText) -> list[str]:
    return [found.text[start:stop] for start, stop in found.spans]


@pytest.mark.parametrize(
    "template", [own.PLAIN, own.MARKS, own.REWRITTEN], ids=["plain", "marks", "rewritten"]
)
def test_the_last_turn_alone_can_be_supervised(template):
    found = found_by(template, turns="last")
    assert (len(found.spans), found.num_turns, found.faults) == (1, 1, [])
    assert texts(found)[0].endswith(f"Seven.{END}")


@pytest.mark.parametrize(
    ("template", "kind", "reason"),
    [
        (own.REWRITTEN, Fault.REWRITTEN, "message 2 is rendered differently once other messages follow it"),
        (own.OTHER_STOP, Fault.REWRITTEN, "message 2 is rendered differently once other messages follow it"),
        (own.OPENS_THINK, Fault.REWRITTEN, r"the generation prompt is .*<think>.* but message 2 begins with"),
        (own.DROPPED, Fault.LOST, "the template leaves out content of the assistant: 'Four.'"),
        (own.REPR, Fault.REPR, "the template renders Python's form of a value"),
        (own.NO_PROMPT, Fault.NO_PROMPT, "the template has no generation prompt, so that '<.start.>"),
        (own.MARKED_HEADER, Fault.OUTSIDE, "the marks of the template include '<.start.>assistant'"),
        ("{{ raise_exception('no system') }}", Fault.FAILED, "the template fails: TemplateError: no system"),
        ("{{ 'x' * 10 ** 6 }}", Fault.FAILED, "the template fails: its output has 1,000,000 characters"),
    ],
)
def test_a_template_that_trains_something_else_is_reported(template, kind, reason):
    faults = dict(reversed(found_by(template).faults))
    assert re.search(reason, faults[kind])


def test_a_value_in_the_form_of_python_is_reported():
    call = {"type": "function", "function": {"name": "now", "arguments": {}}}
    messages = [*talk("Time?"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    body = "{{ m.role ~ m.content ~ (m.tool_calls if m.tool_calls else '') }}{{ '<|end|>' }}"
    kinds = [kind for kind, _ in found_by(own.of_messages(body), messages=messages).faults]
    assert Fault.REPR in kinds
    quoted = talk("What is this?", "{'type': 'function'} is a dict.")
    assert not found_by(own.PLAIN, messages=quoted).faults


def test_prefixes_overrule_marks_and_everything_is_the_whole_text():
    assert texts(found_by(own.MARKED_HEADER, by="prefix")) == [f"Four.{END}", f"Seven.{END}"]
    found = found_by(own.PLAIN, by="everything")
    assert texts(found) == [found.text]


@pytest.mark.parametrize("template", [own.PLAIN, own.MARKS], ids=["plain", "marks"])
@pytest.mark.parametrize("turns", ["all", "last"])
def test_turns_of_weight_0_and_turns_without_content_are_not_supervised(template, turns):
    messages = talk("Hi", "Draft", "Again", " ", "Again", "Final", "Bye", "Ciao")
    found = supervise(messages, renderer(template), "auto", turns, weightless={1, 7})
    is_last = turns == "last"
    assert texts(found) == ([] if is_last else [f"Final{END}"])
    assert found.left_out == {"weightless": 1 if is_last else 2, "empty": 0 if is_last else 1}
    assert [kind for kind, _ in found.faults] == ([Fault.NO_TURN] if is_last else [])
    assert [*map(found.text.count, ("Draft", "Ciao"))] == ([0, 0] if is_last else [1, 1])


def test_a_greeting_is_not_supervised_if_the_template_fails_for_the_prompt_before_it():
    """Templates that look at the first message, such as Qwen2's, fail without one."""
    greeting = [{"role": "assistant", "content": "Welcome!"}]
    looks = "{% if messages[0].role == 'tool' %}{% endif %}"
    found = found_by(looks + own.PLAIN, messages=[*greeting, *TALK])
    assert (texts(found), found.faults) == ([f"Four.{END}", f"Seven.{END}"], [])
    assert (found.left_out["unprompted"], found.num_turns, "Welcome!" in found.text) == (1, 2, True)
    alone = found_by(looks + own.PLAIN, messages=greeting)
    assert [kind for kind, _ in alone.faults] == [Fault.NO_TURN]
    for template in (own.PLAIN, looks + own.MARKS):
        assert texts(found_by(template, messages=[*greeting, *TALK]))[0] == f"Welcome!{END}"


def test_everything_is_supervised_but_what_has_no_weight():
    found = supervise(TALK, renderer(own.PLAIN), "everything", weightless={1})
    assert [part in "".join(texts(found)) for part in ("Two and two?", "Four.", "Seven.")] == [1, 0, 1]
    rewritten = supervise(TALK, renderer(own.REWRITTEN), "everything", weightless={1})
    assert Fault.REWRITTEN in [kind for kind, _ in rewritten.faults]


def test_a_tool_call_that_a_template_leaves_out_is_reported():
    call = {"type": "function", "function": {"name": "now", "arguments": {}}}
    messages = [*talk("Time?"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    (fault,) = found_by(own.PLAIN, messages=messages).faults
    assert fault == (Fault.LOST, "the template leaves out a tool call of the assistant: 'now'")
    body = (
        "{{ '<|start|>' ~ m.role ~ '\n' ~ m.content ~ (m.tool_calls | tojson if m.tool_calls) ~ '<|end|>' }}"
    )
    assert not found_by(own.of_messages(body), messages=messages).faults


@pytest.mark.parametrize("key", THOUGHTS)
def test_thoughts_that_a_template_leaves_out_are_reported_for_the_last_answer(key):
    answer = {"role": "assistant", "content": "Noon.", key: "The sun is high."}
    last, earlier = [*talk("Time?"), answer], [*talk("Time?"), answer, *talk("And now?", "Night.")]
    (fault,) = found_by(own.PLAIN, messages=last).faults
    assert fault == (
        Fault.LOST,
        f"the template leaves out {key} of the assistant: 'The sun is high.'",
    )
    assert not found_by(own.PLAIN, messages=earlier).faults, "templates leave out those of earlier answers"
    body = "{{ '<|start|>' ~ m.role ~ '\n' ~ m.THOUGHTS ~ m.content ~ '<|end|>' }}".replace("THOUGHTS", key)
    assert not found_by(own.of_messages(body), messages=last).faults


CONTENT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(
    lambda text: text.strip() and not any(token in text for token in SPECIAL) and "{'" not in text
)
ROLES = st.sampled_from(["system", "user", "assistant", "tool", "developer"])
MESSAGES = st.lists(st.fixed_dictionaries({"role": ROLES, "content": CONTENT}), min_size=1, max_size=6)


TEMPLATES = {**own.EXACT, "parts": own.PARTS, "marks": own.MARKS}


@given(messages=MESSAGES, template=st.sampled_from(sorted(TEMPLATES)))
def test_any_conversation_is_supervised_exactly(messages, template):
    found = found_by(TEMPLATES[template], messages=messages)
    answers = [each["content"] for each in messages if each["role"] == "assistant"]
    expected = [(each.strip() if template == "trimmed" else each) + END for each in answers]
    assert texts(found) == expected
    assert [kind for kind, _ in found.faults] == ([] if answers else [Fault.NO_TURN])
