"""Forms of conversations, and malformed ones."""

import json
from typing import Any

import pytest

from neobert.config import from_dict
from neobert.data.sources.rows import TEXT
from neobert.data.sources.text_files import read_rows
from neobert.errors import ProjectError
from neobert.tasks.sft.conversation import (
    Conversation,
    detect_form,
    parse_messages,
    parse_tools,
    without_weights,
)
from neobert.tasks.sft.rows import ConversationRows, row_format
from tests.refusals import refusal_of

EXPECTED = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
SHAREGPT = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
TOOLS = [{"name": "now"}]
SFT_RUN = from_dict({"task": "sft"})
TEXT_PARTS = [{"type": "text", "text": "He"}, {"type": "text", "text": "llo"}]


def read(values: dict[str, Any], column: str | None = None) -> Conversation:
    rows = ConversationRows((), messages_column=column)
    return Conversation.from_json(rows.row(values, rows.columns(values, "t:1"), "t:1")[TEXT])


@pytest.mark.parametrize(
    "values",
    [
        {"messages": EXPECTED},
        {"messages": EXPECTED, "prompt": "of UltraChat"},
        {"messages": json.dumps(EXPECTED)},
        {"messages": [{**EXPECTED[0], "tool_calls": None}, EXPECTED[1]]},
        {"messages": [EXPECTED[0], {"role": "assistant", "content": TEXT_PARTS}]},
        {"conversations": SHAREGPT},
        {"messages": [{"role": "human", "content": "Hi"}, {"role": "GPT", "content": "Hello"}]},
        {"prompt": "Hi", "completion": "Hello"},
        {"prompt": EXPECTED[:1], "completion": EXPECTED[1:]},
        {"instruction": "Hi", "input": "", "output": "Hello"},
    ],
)
def test_every_form_gives_the_same_messages(values):
    assert read(values).messages == EXPECTED


def test_a_named_column_and_a_system_prompt_are_read():
    found = read({"talk": EXPECTED, "system": "Be brief.", "messages": "not read"}, column="talk")
    assert found.messages == [{"role": "system", "content": "Be brief."}, *EXPECTED]


@pytest.mark.parametrize(
    "columns", [{"prompt": "Hi", "completion": "Hello"}, {"instruction": "Hi", "output": "Hello"}]
)
def test_every_form_has_a_column_for_the_system_prompt_and_one_for_tools(columns):
    found = read(columns | {"system": "Be brief.", "tools": TOOLS})
    assert found.messages == [{"role": "system", "content": "Be brief."}, *EXPECTED]
    assert found.tools == TOOLS
    refusal_of(read, "DAT020", "system is a number, expected a string", columns | {"system": 3})


def test_the_turns_of_a_prompt_are_not_supervised():
    found = read({"prompt": [*EXPECTED, EXPECTED[0]], "completion": EXPECTED[1:]})
    assert without_weights(found.messages) == (EXPECTED * 2, {1})


@pytest.mark.parametrize("column", ["images", "audio"])
def test_conversations_about_images_and_sounds_are_refused(column):
    with pytest.raises(ProjectError, match=rf"t:1: column '{column}' is not empty, expected text only"):
        read({"messages": EXPECTED, column: ["cat.png"]})
    assert read({"messages": EXPECTED, column: []}).messages == EXPECTED


def test_an_instruction_has_its_input_below_it():
    found = read({"instruction": "Add.", "input": "1 2", "output": "3"})
    assert found.messages[0]["content"] == "Add.\n\n1 2"


def test_calls_and_tools_are_kept():
    call = {"name": "now", "arguments": {}}
    turns = [
        {"from": "human", "value": "Time?"},
        {"from": "function_call", "value": json.dumps(call)},
        {"from": "observation", "value": "noon"},
        {"from": "gpt", "value": "Noon."},
    ]
    found = read({"conversations": turns, "tools": json.dumps([{"name": "now", "default": None}])})
    assert [message["role"] for message in found.messages] == ["user", "assistant", "tool", "assistant"]
    assert found.messages[1] == {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]}
    assert found.tools == [{"name": "now"}]


def test_arguments_of_calls_are_objects_as_templates_read_them():
    function = {"name": "add", "arguments": '{"a": 1}'}
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}
    shared = {"from": "function_call", "value": json.dumps(function)}
    for found in parse_messages([message, shared], "t:1"):
        assert found["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
        assert "content" not in found


def test_weights_are_numbers_that_templates_do_not_get():
    turns = [{**EXPECTED[0], "weight": 0}, {**EXPECTED[1], "weight": 1.0}, {**EXPECTED[1], "weight": 0}]
    assert without_weights(parse_messages(turns, "")) == ([*EXPECTED, EXPECTED[1]], {0, 2})
    call = {"from": "function_call", "value": '{"name": "now"}', "weight": 0}
    assert parse_messages([call], "")[0].keys() == {"role", "tool_calls", "weight"}


@pytest.mark.parametrize("is_trained", [bool, int, float])
@pytest.mark.parametrize("key", ["train", "training", "loss"])
def test_a_message_that_its_row_does_not_train_on_has_no_weight(key, is_trained):
    no, yes = is_trained(0), is_trained(1)
    turns = [{**EXPECTED[0], key: no}, {**EXPECTED[1], key: yes}, {**EXPECTED[1], key: no}]
    assert without_weights(parse_messages(turns, ""))[1] == {0, 2}


@pytest.mark.parametrize("form", [list, json.dumps])
def test_the_history_of_an_instruction_comes_before_it(form):
    row = {"instruction": "And three?", "input": "", "output": "Six.", "system": "Count."}
    found = read(row | {"history": form([["Two?", "Four."]])})
    assert [each["content"] for each in found.messages] == ["Count.", "Two?", "Four.", "And three?", "Six."]
    assert read(row | {"history": form([])}).messages == read(row | {"history": None}).messages
    for history, problem in (
        (form([["Two?"]]), "history has items of another kind"),
        (3, "history is a number"),
    ):
        refusal_of(read, "DAT020", problem, row | {"history": history})


def test_a_call_in_the_form_before_tool_calls_is_one():
    call = {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": "{}"}}
    found = parse_messages([call, {"role": "function", "name": "now", "content": "noon"}], "")
    function = {"name": "now", "arguments": {}}
    assert found[0] == {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
    assert found[1]["role"] == "tool"


@pytest.mark.parametrize("with_tools", [[0], [1], [0, 2]])
def test_tools_of_some_rows_are_kept(with_tools, tmp_path):
    lines = [{"messages": EXPECTED, **({"tools": TOOLS} if at in with_tools else {})} for at in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    read = [Conversation.from_json(row[TEXT]) for row in read_rows(tmp_path / "a.jsonl", row_format(SFT_RUN))]
    assert [at for at, each in enumerate(read) if each.tools == TOOLS] == with_tools


def test_a_row_of_another_form_is_refused(tmp_path):
    lines = [{"messages": EXPECTED}, {"conversations": SHAREGPT}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(ProjectError, match=r"a\.jsonl:2: the row has no column 'messages'"):
        list(read_rows(tmp_path / "a.jsonl", row_format(SFT_RUN)))


def test_a_corpus_of_a_mixture_names_its_column():
    rows = ConversationRows(()).with_text_column("talk")
    assert rows.columns({"talk": EXPECTED, "messages": 3}, "t:1") == {"talk": "talk"}


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        (None, "the conversation is null"),
        ([], "the conversation is an empty list"),
        ("[", "messages is a string that is not JSON"),
        (["Hi"], "message 1 is text"),
        ([{"role": "boss", "content": "Hi"}], "message 1 has role 'boss', expected one of system"),
        ([{"from": "me", "value": "Hi"}], "message 1 has role 'me'"),
        ([{"content": "Hi"}], "message 1 has no role, expected one of system"),
        ([{"role": "user", "content": None}], "message 1 has no content"),
        ([{"role": "assistant"}], "message 1 has no content"),
        ([{"role": "user", "content": 3}], "the content of message 1 is a number"),
        ([{"role": "user", "content": [{"type": "image"}]}], "message 1 has a part that is not text"),
        ([{"from": "function_call", "value": "[1]"}], "message 1 calls no function"),
        ([{"role": "function_call"}], "message 1 calls no function"),
        ([{"role": "assistant", "tool_calls": "now"}], "tool_calls of message 1 is text"),
        ([{**EXPECTED[1], "weight": 0.5}], r"message 1 has weight 0.5, expected 0 \(not trained on\) or 1"),
        ([{**EXPECTED[1], "weight": "0"}], "message 1 has weight '0'"),
        ([{**EXPECTED[1], "weight": False}], "message 1 has weight False"),
        ([{**EXPECTED[1], "train": "false"}], "message 1 has train 'false', expected true or false"),
        ([{**EXPECTED[0], "weight": 1}], "message 1 of role user has weight 1, expected 0: only messages of"),
    ],
)
def test_a_malformed_conversation_is_refused_with_its_message(messages, problem):
    with pytest.raises(ProjectError, match=problem) as caught:
        parse_messages(messages, "t.jsonl:1")
    assert (caught.value.code, caught.value.place) == ("DAT020", "t.jsonl:1")


def test_tools_that_are_no_list_are_refused():
    assert parse_tools(None, "t:1") == parse_tools("", "t:1") == []
    refusal_of(parse_tools, "DAT020", "tools is a number, expected a list of objects", 3, "t:1")


def test_a_table_of_another_form_is_refused_with_the_forms():
    assert detect_form(["text", "label"]) is None
    error = refusal_of(read, "DAT011", "the columns match no form of conversations", {"text": "Hi"})
    assert error.place == "t:1"
    assert error.hint.startswith("write task: causal")
    error = refusal_of(read, "DAT011", "the columns match no form of conversations", {"talk": EXPECTED})
    assert error.hint == "set sft.messages_column to one of the columns: 'talk'"
