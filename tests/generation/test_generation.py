"""`evaluate generation`: greedy continuations of prompts and conversations, and prompts that are wrong."""

import json
import shutil
import subprocess
import sys

import pytest

from neobert.errors import ProjectError
from neobert.evaluation.generation.prompts import read_prompts
from tests.generation.test_chat import reference


@pytest.mark.usefixtures("warm")
def test_prompts_are_continued_with_the_likeliest_tokens(chatty, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = [{"prompt": "hello world"}, {"messages": [{"role": "user", "content": "hello"}]}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    command = [sys.executable, "-m", "launcher", "evaluate", "generation", str(chatty), "--max-tokens", "6"]
    places = [str(tmp_path / "p.jsonl"), "-o", str(tmp_path / "out")]
    done = subprocess.run([*command, *places], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 prompts, 6.0 tokens on average, 0.0% ended by themselves" in done.stdout
    text, reply = json.loads((tmp_path / "out" / "generation.json").read_text(encoding="utf-8"))["samples"]
    assert reply["continuation"] == reference(chatty, ("user", "hello"))
    tokenizer = AutoTokenizer.from_pretrained(chatty)
    ids = torch.tensor([tokenizer("hello world")["input_ids"]])
    made = AutoModelForCausalLM.from_pretrained(chatty).generate(ids, max_new_tokens=6, do_sample=False)
    assert text["continuation"] == tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)


def test_prompts_longer_than_the_rows_of_the_training_have_no_warning(chatty, caplog):
    """The library announced errors of indexing, in the middle of a chat."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from neobert.generation.model import Generator

    tokenizer = AutoTokenizer.from_pretrained(chatty, model_max_length=4)
    generator = Generator(AutoModelForCausalLM.from_pretrained(chatty), tokenizer)
    logging.enable_propagation()
    try:
        assert len(generator.text_prompt("hello world, how are you today")) > 4
        assert len(generator.chat_prompt([{"role": "user", "content": "how are you today"}])) > 4
    finally:
        logging.disable_propagation()
    assert not caplog.records


@pytest.mark.usefixtures("warm")
def test_gpt2_is_a_causal_model_under_another_name(chatty, tmp_path):
    """The name of its class in config.json does not end as those of the others."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = shutil.copytree(chatty, tmp_path / "gpt2")
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
    GPT2LMHeadModel(GPT2Config(vocab_size=300, bos_token_id=1, eos_token_id=1, **sizes)).save_pretrained(
        folder
    )
    (tmp_path / "p.txt").write_text("hello\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "launcher",
        "evaluate",
        "generation",
        str(folder),
        str(tmp_path / "p.txt"),
    ]
    done = subprocess.run([*command, "--max-tokens", "2"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1 prompt, " in done.stdout


def test_a_mark_line_ends_in_texts_and_text_parts_are_read(tmp_path):
    parts = [{"type": "text", "text": "a\u2028"}, {"type": "text", "text": "b"}]
    row = json.dumps({"messages": [{"role": "user", "content": parts}]}, ensure_ascii=False)
    (tmp_path / "p.jsonl").write_bytes(f'\ufeff{{"prompt": "c"}}\r\n{row}'.encode())
    first, second = read_prompts(tmp_path / "p.jsonl")
    assert (first.text, second.messages) == ("c", [{"role": "user", "content": "a\u2028b"}])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "p.jsonl",
            '{"prompt": "a"}\n{"text": "b"}',
            "p.jsonl:2: the line needs a prompt or messages",
        ),
        ("p.jsonl", '{"prompt": "a"', "p.jsonl:1: the line is not JSON"),
        ("p.jsonl", '{"messages": [{"role": "user"}]}', "p.jsonl:1: the content of message 1 is not text"),
        (
            "p.jsonl",
            '{"messages": [{"role": "human", "content": "a"}]}',
            "role of message 1 is not one of",
        ),
        ("p.txt", "\n\n", "p.txt: the file has no prompts"),
    ],
)
def test_wrong_prompts_are_named_by_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ProjectError) as error:
        read_prompts(tmp_path / name)
    assert message in f"{error.value.place}: {error.value.message}"
