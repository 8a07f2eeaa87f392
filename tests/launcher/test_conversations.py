"""Conversations: run files that are written for them, and reports that show their supervised text."""

import csv
import gzip
import json
import re
from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers

from launcher.commands.data import prepared_text
from launcher.report.text_view import HEADING, conversation_text
from profiles.registry import resolve_run
from tests.launcher.model_folders import WORDS, write_model

TALK = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A test."}]
SHAREGPT = [{"from": "human", "value": "What is it?"}, {"from": "gpt", "value": "A test."}]


def write_rows(row: object, name: str = "talks.jsonl", number: int = 300) -> None:
    Path(name).write_text(f"{json.dumps(row)}\n" * number, encoding="utf-8")


def run_lines(file: str, key: str) -> list[str]:
    return [line for line in Path(file).read_text("utf-8").splitlines() if key in line]


@pytest.mark.parametrize(
    ("row", "form", "column"),
    [
        (
            {"messages": TALK, "id": 3, "label": False},
            "messages in column 'messages', 300 rows, 2.0 messages each; columns not read: 'id', 'label'",
            None,
        ),
        (TALK, "messages in column 'messages', 300 rows, 2.0 messages each", None),
        ({"chat": SHAREGPT}, "messages in column 'chat', 300 rows, 2.0 messages each", "chat"),
        ({"prompt": "What?", "completion": "A test."}, "prompt and completion, 300 rows", None),
        ({"instruction": "Do.", "output": "Done."}, "instruction and output, 300 rows", None),
    ],
)
def test_conversations_are_recognized_for_a_causal_model(command, row, form, column):
    write_rows(row)
    write_model(Path("base"), "llama")
    Path("mine").mkdir()  # paths are relative to the run file, and the word turns is not one
    done = command(
        "init", "--from", "base", "--text", "talks.jsonl", "--output-format", "json", "mine/run.yaml"
    )
    assert json.loads(done.out)["inferred"][0].startswith(f"conversations: {form}")
    written = yaml.safe_load(Path("mine/run.yaml").read_text("utf-8"))
    assert written["task"] == "sft"
    assert written.get("sft", {}).get("messages_column") == column
    assert written["tokenizer"]["chat_template"] == "turns"
    assert written["optimizer"]["lr"] == "2e-4"
    assert command("lint", "mine/run.yaml", "--strict").code == 0


def test_a_template_of_the_weights_is_used_and_other_text_is_refused(command):
    write_rows({"messages": TALK})
    folder = write_model(Path("chat"), "llama")
    (folder / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    assert command("init", "--task", "sft", "--from", "chat", "--text", "talks.jsonl", "run.yaml").code == 0
    assert "tokenizer" not in yaml.safe_load(Path("run.yaml").read_text("utf-8"))
    write_rows({"question": "What?", "answer": "A test."}, "other.jsonl")
    done = command("init", "--task", "sft", "--from", "chat", "--text", "other.jsonl", "other.yaml")
    assert "the columns match no form of conversations: 'question', 'answer'" in done.err
    assert "= hint: rename 'question' and 'answer' to prompt and completion\n" in done.err
    write_rows({"prompt": "What?", "chosen": TALK, "rejected": TALK}, "other.jsonl")
    done = command("init", "--task", "sft", "--from", "chat", "--text", "other.jsonl", "other.yaml")
    assert "hint: TRL trains on preferences" in done.err
    assert not Path("other.yaml").exists()


def test_a_microbatch_of_few_short_conversations_is_full(command):
    """A file of 60 questions was refused by the preflight of the command that had written its run file."""
    write_rows({"messages": TALK}, number=60)
    write_model(Path("base"), "llama")
    assert command("init", "--from", "base", "--text", "talks.jsonl", "run.yaml").code == 0
    config = resolve_run(None, ["run.yaml"]).config
    tokens = 6 + 7  # words of a conversation, and what the template adds
    assert config.trainer.per_device_train_batch_size * config.dataset.max_seq_length < 48 * tokens


def test_text_of_a_causal_model_is_pretraining(command):
    write_model(Path("base"), "llama")
    Path("notes.txt").write_text("A document of some words.\n\n" * 900, encoding="utf-8")
    assert command("init", "--from", "base", "--text", "notes.txt", "run.yaml").code == 0
    assert yaml.safe_load(Path("run.yaml").read_text("utf-8"))["task"] == "causal"


def test_a_malformed_row_of_conversations_is_not_read_as_text(command):
    write_rows({"messages": TALK})
    with Path("talks.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"messages": [{"content": "What is it?"}]}) + "\n")
        file.write(json.dumps({"messages": []}) + "\n")
    write_model(Path("base"), "llama")
    done = command("train", "--from", "base", "--text", "talks.jsonl")
    assert "talks.jsonl:301: message 1 has no role" in done.err
    assert "(2 of 302 rows)" in done.err
    assert "= hint: correct or remove the row" in done.err
    assert not Path("base-talks.yaml").exists()


def test_completions_that_kto_rejects_are_not_learned(command):
    write_rows({"prompt": "What?", "completion": "A test.", "label": True}, number=200)
    write_model(Path("base"), "llama")
    init = ("init", "--from", "base", "--text", "talks.jsonl")
    command(*init, "accepted.yaml").passed()
    with Path("talks.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"prompt": "What?", "completion": "No.", "label": False}) + "\n")
    done = command(*init, "run.yaml")
    done.refused(2, "talks.jsonl: label is false in 1 of 201 rows", "hint: keep the rows with label true")


def test_a_folder_of_plain_text_is_no_malformed_table(command):
    write_model(Path("base"), "llama")
    Path("notes").mkdir()
    Path("notes/a.txt").write_text("A document of some words.\n\n" * 900, encoding="utf-8")
    command("init", "--from", "base", "--text", "notes", "run.yaml").passed()
    assert yaml.safe_load(Path("run.yaml").read_text("utf-8"))["task"] == "causal"


def test_of_many_conversations_the_first_are_read(command, monkeypatch):
    write_rows({"messages": TALK}, number=6000)
    write_model(Path("base"), "llama")
    command("init", "--from", "base", "--text", "talks.jsonl", "all.yaml").passed()
    monkeypatch.setattr("neobert.tasks.sft.inferred.MAX_ROWS", 3000)
    done = command("init", "--from", "base", "--text", "talks.jsonl", "run.yaml").passed()
    assert "only the first 3,000 rows were read: later ones may be longer" in done.out
    assert run_lines("run.yaml", "max_steps:") == run_lines("all.yaml", "max_steps:"), "of the whole text"
    Path("talks.jsonl.gz").write_bytes(gzip.compress(Path("talks.jsonl").read_bytes()))
    command("init", "--from", "base", "--text", "talks.jsonl.gz", "packed.yaml").passed()
    (steps,) = run_lines("packed.yaml", "max_steps:")
    assert "3 passes over the rows that were read" in steps


def test_a_malformed_line_of_conversations_is_named(command):
    """The file was read as plain text, of which the first line was refused: it had no column of text."""
    write_rows({"messages": TALK})
    with Path("talks.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"messages": [{"role": "user", "cont\n')
    write_model(Path("base"), "llama")
    done = command("init", "--from", "base", "--text", "talks.jsonl", "run.yaml")
    done.refused(2, "talks.jsonl:301: is not JSON: ", "hint: write one JSON object per line")


def test_of_few_conversations_a_number_is_held_out(command):
    """A share by hash was none of three, and the run was refused."""
    write_rows({"messages": TALK}, number=3)
    write_model(Path("base"), "llama")
    command("init", "--from", "base", "--text", "talks.jsonl", "run.yaml").passed()
    dataset = resolve_run(None, ["run.yaml"]).config.dataset
    assert dataset.eval_samples == 1
    assert command("lint", "run.yaml", "--strict").code == 0
    write_rows({"messages": TALK}, number=1)
    done = command("init", "--from", "base", "--text", "talks.jsonl", "one.yaml")
    done.refused(2, "the table has 1 conversation (at least 2)")


def test_a_column_and_a_context_that_do_not_apply_are_refused_with_a_way_out(command):
    write_rows({"messages": TALK})
    write_model(Path("base"), "llama")
    init = ("init", "--from", "base", "--text", "talks.jsonl", "run.yaml")
    done = command(*init, "--task", "sft", "--sft.messages_column", "talk")
    done.refused(
        2, "the table has no column 'talk' (columns: 'messages')", "set sft.messages_column to one of"
    )
    done = command(*init, "--context", "1024")
    done.refused(2, "leave out --context, and set dataset.max_seq_length to 1024 in the run file")


def test_a_table_with_columns_in_csv_is_read(command):
    with Path("talks.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["messages", "id"], *([json.dumps(TALK), at] for at in range(300))])
    write_model(Path("base"), "llama")
    done = command("init", "--from", "base", "--text", "talks.csv", "run.yaml")
    assert "conversations: messages in column 'messages', 300 rows, 2.0 messages each" in done.out


def test_conversations_without_the_assistant_are_refused(command):
    write_rows({"messages": TALK[:1]})
    write_model(Path("base"), "llama")
    done = command("init", "--from", "base", "--text", "talks.jsonl", "run.yaml")
    reason = "the conversation has no message of the assistant"
    assert f"talks.jsonl: no token of 300 conversations is supervised: {reason}" in done.err
    assert (done.code, Path("run.yaml").exists()) == (2, False)


@pytest.mark.parametrize(
    "messages",
    [TALK[:1], [TALK[0], {**TALK[1], "content": " "}], [TALK[0], {**TALK[1], "weight": 0}]],
)
def test_a_conversation_without_an_answer_is_refused_with_its_line(messages, command):
    """SFT001 refused the run that `init` had written, and named the conversation by its number of a split."""
    write_rows({"messages": TALK})
    with Path("talks.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"messages": messages}) + "\n")
    write_model(Path("base"), "llama")
    done = command("init", "--from", "base", "--text", "talks.jsonl", "run.yaml")
    reason = "the conversation has no message of the assistant with content and weight 1"
    done.refused(2, f"talks.jsonl:301: {reason} (1 of 301 conversations)")
    assert "hint: correct or remove these rows" in done.err


def test_a_model_that_is_not_causal_is_refused_with_one_that_is(command):
    write_rows({"messages": TALK})
    write_model(Path("base"), "bert")
    done = command("init", "--task", "sft", "--from", "base", "--text", "talks.jsonl", "run.yaml")
    assert "task sft needs a causal model, and a bert attends in both directions" in done.err
    assert "hint: pass as --from a causal model, such as a llama or a qwen2" in done.err
    Path("run.yaml").write_text(
        "task: sft\nmodel: {type: hf, pretrained_checkpoint: base}\ndataset: {path: talks.jsonl}\n"
    )
    assert command("lint", "run.yaml").out.count("MOD005") == 1


TOOLS = [{"type": "function", "function": {"name": "now", "description": "x " * 3000}}]
CALL = {"type": "function", "function": {"name": "now", "arguments": {"place": "x " * 3000}}}


@pytest.mark.parametrize(
    ("row", "length", "is_split"),
    [
        ({"messages": TALK}, 32, False),
        ({"messages": TALK, "tools": TOOLS}, 2048, False),
        ({"messages": [TALK[0], {"role": "assistant", "tool_calls": [CALL]}]}, 2048, False),
        ({"messages": [TALK[0], {"role": "assistant", "content": "x " * 12_000}]}, 8192, False),
        ({"messages": TALK * 600}, 8192, True),
    ],
)
def test_the_length_covers_the_conversations(row, length, is_split, command):
    write_rows(row, number=40)
    write_model(Path("base"), "llama", max_position_embeddings=8192)
    assert command("init", "--from", "base", "--text", "talks.jsonl", "--device", "gpu").code == 0
    config = resolve_run(None, ["run.yaml"]).config
    assert (config.dataset.max_seq_length, config.dataset.long_documents == "split") == (length, is_split)
    trainer = config.trainer
    assert (trainer.per_device_train_batch_size or 0) * length <= 32_768
    assert command("lint", "run.yaml", "--strict").code == 0


def test_split_conversations_are_read_as_often_as_the_same_turns_in_short_ones(command):
    write_model(Path("base"), "llama")
    planned = []
    for name, turns, number in (("short", 4, 1500), ("long", 400, 15)):
        write_rows({"messages": TALK * turns}, f"{name}.jsonl", number)
        assert command("init", "--from", "base", "--text", f"{name}.jsonl", f"{name}.yaml").code == 0
        config = resolve_run(None, [f"{name}.yaml"]).config
        rows = config.trainer.per_device_train_batch_size * config.trainer.gradient_accumulation_steps
        planned.append(config.trainer.max_steps * rows * config.dataset.max_seq_length)
    assert config.dataset.long_documents == "split"
    assert 0.6 < planned[1] / planned[0] < 1.1  # short ones begin more often, with tokens of their own


def write_model_of_words(folder: Path, positions: int) -> None:
    """Write a model whose tokens are words and signs."""
    write_model(folder, "llama", max_position_embeddings=positions)
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token=WORDS[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def answers_of_words(*numbers: int) -> None:
    rows = [{"messages": [TALK[0], {"role": "assistant", "content": "x " * number}]} for number in numbers]
    Path("talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.mark.parametrize(
    ("answers", "setting", "length"),
    [([40] * 199 + [70], "drop", 64), ([40] * 150 + [280] * 50, "truncate", 256)],
)
def test_long_answers_are_shortened_so_that_few_tokens_are_lost(answers, setting, length, command):
    answers_of_words(*answers)
    write_model_of_words(Path("base"), 256)
    command("init", "--from", "base", "--text", "talks.jsonl", "run.yaml", "--device", "cpu").passed()
    config = resolve_run(None, ["run.yaml"]).config
    assert (config.dataset.long_documents, config.dataset.max_seq_length) == (setting, length)
    rows = config.trainer.per_device_train_batch_size * config.trainer.gradient_accumulation_steps
    headers = 15  # of both messages, with the question
    kept = [min(length, size + headers) for size in answers]
    passes = config.trainer.max_steps * rows * length / (0.8 * sum(kept))
    assert 2.7 < passes < 3.4
    assert command("lint", "run.yaml", "--strict").code == 0


def test_a_long_answer_with_many_of_the_tokens_lengthens_the_rows(command):
    """9 % of the text was in one conversation, but 13 % of the answers: the model was called too short."""
    question = {"role": "user", "content": "x " * 1000}
    rows = [[question, {"role": "assistant", "content": "x " * 800}]] * 100
    rows.append([TALK[0], {"role": "assistant", "content": "x " * 12_000}])
    text = "".join(json.dumps({"messages": row}) + "\n" for row in rows)
    Path("talks.jsonl").write_text(text, encoding="utf-8")
    write_model_of_words(Path("base"), 131_072)
    command("init", "--from", "base", "--text", "talks.jsonl", "run.yaml", "--device", "cpu").passed()
    assert resolve_run(None, ["run.yaml"]).config.dataset.max_seq_length == 4096


def test_answers_longer_than_the_model_are_refused_before_a_run_file_is_written(command):
    """The run file was written, and SFT008 refused the run: conversations were split, with none left."""
    answers_of_words(*[600] * 100)
    write_model_of_words(Path("base"), 256)
    done = command("init", "--from", "base", "--text", "talks.jsonl", "run.yaml")
    done.refused(2, "talks.jsonl: about 100 of 100 conversations exceed the 256 positions of the model: ")
    assert re.search(r"model: 6\d\.\d% of the answers' tokens are lost \(limit 10\.0%\) \[SFT008\]", done.err)
    assert "hint: shorten or remove these, or pass a model with more positions as --from" in done.err
    assert not Path("run.yaml").exists()


def test_a_long_conversation_whose_answer_is_thoughts_is_measured(command):
    """Thoughts had no size, so the long conversation had no answer: a traceback."""
    thoughts = {"role": "assistant", "content": "", "reasoning_content": "x " * 600}
    rows = [{"messages": TALK}] * 300 + [{"messages": [TALK[0], thoughts]}]
    Path("talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    write_model_of_words(Path("base"), 256)
    done = command("init", "--from", "base", "--text", "talks.jsonl", "run.yaml")
    done.refused(2, "talks.jsonl: about 1 of 301 conversations exceed the 256 positions of the model: ")


def test_supervised_text_is_marked_and_escaped():
    shown = conversation_text(
        [("user\nHi \x1b[31m", False), ("He\tllo\nthere\u200d<end>", True), ("\n", False)]
    )
    assert shown.splitlines() == [HEADING, "  user", "  Hi \ufffd[31m[[He\tllo", "  there\u200d<end>]]"]


def test_the_report_of_prepared_text_names_what_was_lost():
    counts = {
        "documents": 9, "segments": 8, "tokens": 800, "source": "talks.jsonl",
        "conversations": {"turns": 12, "supervised": 200, "lost": 30, "without_target": 1, "crossing": 0,
                          "weightless": 2, "empty": 1, "unprompted": 3},
        "faults": {"no-stop": {"count": 1, "first": 7, "detail": "a turn ends with '.'"}},
    }  # fmt: skip
    shown = prepared_text({"train": counts, "sample": [["Hi", True]]})
    assert "200 supervised tokens (25.0%) of 12 turns" in shown
    assert "30 supervised tokens lost from long conversations" in shown
    assert "1 conversation without a supervised token: left out" in shown
    assert "2 turns of a prompt or of weight 0: not supervised" in shown
    assert "1 turn without content: not supervised" in shown
    assert "3 first messages of the assistant, for which the template has no prompt: not" in shown
    assert "no-stop: 1 conversation, first 7: a turn ends with '.'" in shown
    assert shown.endswith(f"{HEADING}\n  [[Hi]]")
