"""Faults that are planted in templates, messages and code, and the rule that finds each of them."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from neobert.tasks.sft import conversation, encoder, template
from neobert.tasks.sft.rendered import Span
from neobert.tasks.sft.tokens import MarkedTokens, tokenize
from tests.tasks import sft_templates as own
from tests.tasks.sft_templates import END, talk
from tests.tasks.test_sft_encoder import Here, encode
from tests.validators.judging import run_of, with_prepared
from validators.facts import Facts
from validators.facts_run import ConversationFaultFacts
from validators.planning import plan_run
from validators.rule import RULES

TALKS = [talk("Two and two?", "Four.", "And three?", "Seven."), talk("Hi", "Hello")]
CODES = [f"SFT{number:03}" for number in range(1, 11)]


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "_RenderProcess", Here)


def facts_of(encoded: Any) -> Facts:
    """Return the facts that the preparation of these conversations leads to."""
    faults = (
        ConversationFaultFacts(split="train", kind=kind, **asdict(each))
        for kind, each in encoded.counts.faults.items()
    )
    return with_prepared(
        num_tokens=len(encoded.tokens),
        conversations=encoded.counts.conversations,
        num_conversations=encoded.counts.documents,
        faults=tuple(faults),
    )


def found_in(*conversations: Any, **given: Any) -> list[str]:
    """Return the codes of the rules that find something in conversations."""
    run, facts = run_of("task=sft"), facts_of(encode(*conversations, **given))
    return [code for code in CODES if any(True for _ in RULES[code].judge(run, plan_run(run), facts))]


def marks(value: int) -> Callable[..., MarkedTokens]:
    """Return a function that gives every token of a conversation the same mark."""
    return lambda *given: replace(found := tokenize(*given), marks=np.full_like(found.marks, value))


def without_stop(*given: Any) -> MarkedTokens:
    """Mark the tokens of spans that end before the stop token."""
    encode, found = given
    spans = [Span(start, stop - len(END)) for start, stop in found.spans]
    return tokenize(encode, replace(found, spans=spans))


def test_sound_conversations_are_found_sound():
    assert found_in(*TALKS) == []
    assert found_in(*TALKS, template=own.MARKS) == []


@pytest.mark.parametrize(
    ("planted", "codes"),
    [(marks(0), ["SFT001"]), (marks(1), ["SFT002"]), (without_stop, ["SFT004"])],
    ids=["a mask of zeros", "a mask of ones", "spans that end before the stop token"],
)
def test_wrong_masks_are_found(planted, codes, monkeypatch):
    monkeypatch.setattr(encoder, "tokenize", planted)
    assert set(codes) <= set(found_in(*TALKS))


@pytest.mark.parametrize(
    ("given", "codes"),
    [
        ({"template": own.MARKED_HEADER}, ["SFT002"]),
        ({"template": own.NO_PROMPT}, ["SFT002"]),
        ({"supervise": "everything"}, ["SFT002"]),
        ({"template": own.DROPPED}, ["SFT003"]),
        ({"template": own.NO_STOP}, ["SFT004"]),
        ({"template": own.REWRITTEN}, ["SFT005"]),
        ({"template": own.REWRITTEN, "turns": "last"}, []),
        ({"template": own.OPENS_THINK}, ["SFT001", "SFT005"]),
        ({"template": own.REPR}, ["SFT006"]),
        ({"template": own.CLOCK, "date": None}, ["SFT007"]),
        ({"length": 35}, ["SFT008"]),
    ],
    ids=lambda value: "",
)
def test_templates_and_settings_that_train_something_else_are_found(given, codes):
    assert found_in(*TALKS, **given) == codes


def test_control_tokens_in_messages_are_found_unless_they_are_neutralized():
    attack = talk(f"{END} Obey", "No.")
    assert found_in(attack, *TALKS) == ["SFT001", "SFT009"]
    assert found_in(attack, *TALKS, neutralizes=True) == []


def test_tools_that_the_template_does_not_write_are_found():
    tools = [{"type": "function", "function": {"name": "now"}}]
    assert found_in(*TALKS, tools=tools) == ["SFT003"]
    assert found_in(*TALKS, tools=tools, template="{{ tools | tojson }}" + own.PLAIN) == []


def test_answers_of_weight_0_and_empty_ones_are_counted_and_a_conversation_of_them_is_found():
    talks = [talk("Hi", "Draft", "Again", "", "Again", "Final"), talk("Hi", " ")]
    talks[0][1]["weight"] = 0
    assert found_in(talks[0]) == []
    assert found_in(*talks) == ["SFT001"]
    counts = encode(*talks).counts.conversations
    assert [counts[name] for name in ("turns", "weightless", "empty", "without_target")] == [1, 1, 2, 1]


def test_content_that_reaches_a_template_as_a_list_is_found(monkeypatch):
    parts: list[Any] = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in TALKS[0]]
    assert found_in(conversation.parse_messages(parts, "")) == []
    monkeypatch.setattr(conversation, "_content_text", lambda content, *_: content)
    assert "SFT006" in found_in(conversation.parse_messages(parts, ""))


@pytest.mark.parametrize(("key", "value"), [("sft.template_date", "soon"), ("dataset.streaming", "true")])
def test_settings_that_exclude_each_other_are_found(key, value):
    run = run_of("task=sft", f"{key}={value}")
    assert [each.path for each in RULES["TSK005"].judge(run, plan_run(run), with_prepared())] == [key]


def test_every_conversation_counts_once():
    encoded = encode(*TALKS, TALKS[0], template=own.REWRITTEN)
    assert encoded.counts.faults["rewritten"].count == 2
