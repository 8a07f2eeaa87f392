"""Supervised fine-tuning: runs that are killed, continued, adapted and loaded, and their generations."""

import json

import pytest
import torch

from neobert.config import from_dict
from neobert.data.store.prepare import prepare
from neobert.data.tokenize.encoding import SUPERVISED
from neobert.errors import ProjectError
from tests.tasks import sft_templates as own
from tests.tasks.sft_templates import bytes_tokenizer
from tests.training.conftest import finished_run

TALKS = [
    [
        {"role": "user", "content": f"{word} {number}"},
        {"role": "assistant", "content": f"{number} {word}"},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": word * 3},
    ]
    for number in range(20)
    for word in ("badu", "kelo", "mira")
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Conversations, and a tokenizer of bytes with a chat template."""
    folder = tmp_path_factory.mktemp("data")
    lines = [json.dumps({"messages": talk}) for talk in TALKS]
    (folder / "talks").mkdir()
    (folder / "talks" / "train.jsonl").write_text("\n".join(lines[6:]))
    (folder / "talks" / "validation.jsonl").write_text("\n".join(lines[:6]))
    tokenizer = bytes_tokenizer()
    tokenizer.chat_template = own.PLAIN
    tokenizer.save_pretrained(folder / "tokenizer")
    tokenizer.chat_template = None
    return folder


def options(data, **more):
    return {
        "task": "sft",
        "model": {"type": "hf", "architecture": "llama", "num_key_value_heads": 1},
        "tokenizer": {"path": str(data / "tokenizer")},
        "dataset": {"path": str(data / "talks"), "max_seq_length": 128, "long_documents": "drop"},
        "trainer": {"metric_for_best_model": "eval/loss"},
    } | more


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus, data):
    """A run without a stop: its folder."""
    return finished_run(tmp_path_factory.mktemp("sft") / "run", corpus, options(data))


def losses_of(lines):
    return [line["eval/loss"] for line in lines if "eval/loss" in line]


def test_a_killed_run_ends_as_the_unbroken_one(killed_run, metrics, finished, data):
    killed_run(7, finished, **options(data))
    losses = losses_of(metrics(finished))
    assert losses[-1] < losses[0] - 0.3
    assert (finished / "checkpoints" / "best").resolve().name == "12"


def test_transformers_computes_the_same_loss_and_stops_where_turns_end(finished, metrics):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = finished / "checkpoints" / "12"
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    loss, num_targets = 0.0, 0
    for talk in TALKS[:6]:
        ids = torch.tensor([tokenizer.apply_chat_template(talk, tokenize=True)["input_ids"]])
        labels = torch.full_like(ids, -100)
        for turn in (1, 3):  # the answers, by the positions of the prompts before them
            before = tokenizer.apply_chat_template(talk[:turn], add_generation_prompt=True)["input_ids"]
            after = tokenizer.apply_chat_template(talk[: turn + 1])["input_ids"][:-1]  # without the line end
            labels[0, len(before) : len(after)] = ids[0, len(before) : len(after)]
        with torch.no_grad():
            count = int((labels != -100).sum())
            loss += float(model(ids, labels=labels).loss) * count
        num_targets += count
    assert loss / num_targets == pytest.approx(metrics(finished)[-1]["eval/loss"], rel=1e-5)
    stops = [tokenizer.convert_tokens_to_ids(name) for name in (own.EOS, own.END)]
    assert model.generation_config.eos_token_id == stops
    assert tokenizer.chat_template == own.PLAIN


def prepared_with(make_run, data, **more):
    run_dir = make_run(**options(data, **more))
    return prepare(from_dict(json.loads((run_dir / "resolved.json").read_text())))


def test_prepared_text_marks_the_answers_and_shows_the_first(make_run, data):
    prepared = prepared_with(make_run, data)
    sample = prepared.report["sample"]
    assert "".join(text for text, _ in sample) == "".join(
        f"{own.START}{each['role']}\n{each['content']}{own.END}\n" for each in TALKS[6]
    )
    assert [text for text, is_supervised in sample if is_supervised] == [
        "2 badu<|end|>",
        "badubadubadu<|end|>",
    ]
    counts = prepared.report["train"]["conversations"]
    assert counts["supervised"] == int(prepared.train.columns[SUPERVISED.name].sum())


def test_a_tokenizer_without_a_template_names_the_key(make_run, data, tmp_path):
    bytes_tokenizer().save_pretrained(tmp_path / "bare")
    with pytest.raises(ProjectError, match="has no chat template") as caught:
        prepared_with(make_run, data, tokenizer={"path": str(tmp_path / "bare")})
    assert (caught.value.code, caught.value.place) == ("TOK001", "tokenizer.chat_template")
