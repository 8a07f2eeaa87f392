"""Whole commands on conversations: what is refused, trained, exported and talked to."""

import json
import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm")]

RUN_FILE = """\
profile: sft-demo
model: {hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
dataset: {cache_dir: cache, num_workers: 0}
tokenizer: {vocab_size: 512, chat_template: think.jinja}
trainer: {output_dir: run, max_steps: 4}
"""
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"city": {"type": "string"}}}}
CALLS = [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}]
CALLING = [
    {"role": "user", "content": "How is Rome?"},
    {"role": "assistant", "content": "I look.", "tool_calls": CALLS},
    {"role": "tool", "content": "12"},
    {"role": "assistant", "tool_calls": CALLS * 2},
    {"role": "tool", "content": "13"},
    {"role": "assistant", "content": "It is warm."},
]
PREPARED = """\
  [CLS] tools
  {tool}[SEP]
  [CLS] user
  How is Rome?[SEP]
  [CLS] assistant
  [[I look.
  {call}[SEP]]]
  [CLS] tool
  12[SEP]
  [CLS] assistant
  [[{call}
  {call}[SEP]]]
"""
LONG = ("--model.max_position_embeddings", "1024")
THINK = """\
{% for m in messages %}{{ cls_token ~ m.role ~ "\\n" ~ m.content ~ sep_token }}{% endfor %}
{%- if add_generation_prompt %}{{ cls_token ~ "assistant\\n<think>\\n" }}{% endif %}
"""


def test_a_run_whose_hint_is_followed_is_exported_and_talked_to(run_child):
    Path("think.jinja").write_text(THINK, encoding="utf-8")
    Path("run.yaml").write_text(RUN_FILE, encoding="utf-8")
    refused = run_child("train", "run.yaml", "--output-format", "json")
    assert refused.code == 1, refused.out + refused.err
    failed = {each["code"]: each for each in refused.json["findings"] if each["severity"] == "fail"}
    assert set(failed) == {"SFT001"}
    message = failed["SFT001"]["message"]
    assert "conversations is supervised: the generation prompt is" in message
    assert "<think>" in message
    assert "; the conversation begins with 'What is 4 plus 7?'" in message
    assert "set tokenizer.chat_template to" in failed["SFT001"]["hint"]
    assert not Path("run").exists()

    trained = run_child("train", "run.yaml", "--set", "tokenizer.chat_template=turns", *LONG).passed()
    assert "[[A lemon is yellow.[SEP]]]" in trained.out
    assert re.search(r"next: neobert-launch chat \S+/run/checkpoints/\d+\n", trained.out)
    generation = json.loads(Path("run/checkpoints/4/generation_config.json").read_text("utf-8"))
    assert generation["eos_token_id"] == [2]

    run_child("export", "run", "-o", "out").passed()
    settings = json.loads(Path("out/hf/tokenizer_config.json").read_text("utf-8"))
    assert settings["model_max_length"] == 1024  # positions of the model, whose conversations have up to 128
    Path("prompt.txt").write_text("What is it? " * 60, encoding="utf-8")
    with Path("prompt.txt").open(encoding="utf-8") as prompt:
        answered = run_child("chat", "out/hf", "--max-tokens", "2", stdin=prompt)
    assert answered.code == 0, answered.err
    assert "longer" not in answered.err


def test_tools_and_their_calls_are_learned_by_a_model_without_a_template(run_child):
    ends = ({"role": "user", "content": f"Bye {at}."} for at in range(100))  # no two are equal
    rows = [{"messages": [*CALLING, end], "tools": [TOOL]} for end in ends]
    Path("talks.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    Path("run.yaml").write_text(RUN_FILE.replace("think.jinja", "turns"), encoding="utf-8")
    shape = ("--dataset.path", "talks.jsonl", "--dataset.max_seq_length", "1024", *LONG)
    checked = run_child("preflight", "run.yaml", "--level", "data", *shape)
    assert "SFT" not in checked.out, checked.out
    shown = "".join(f"{line.rstrip()}\n" for line in checked.out.splitlines())
    assert PREPARED.format(tool=json.dumps(TOOL), call=json.dumps(CALLS[0])) in shown
