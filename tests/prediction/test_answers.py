"""Answers and choices that `predict` adds, against transformers' models: it has no pipeline for them."""

import json
import random
from itertools import groupby

import pytest
import torch
import transformers
from transformers import AutoModelForMultipleChoice, AutoModelForQuestionAnswering, AutoTokenizer

from neobert.errors import ProjectError
from neobert.model import NeoBERTConfig
from neobert.model.modeling_neobert import NeoBERTForMultipleChoice, NeoBERTForQuestionAnswering
from tests.prediction.test_predict import (
    NEOBERT,
    SIZES,
    WORDS,
    _one_thread_one_seed,
    predict,
    saved,
    sentences,
    tokenizer_dir,
    with_types,
)

__all__ = ["_one_thread_one_seed", "saved", "tokenizer_dir"]

SETTINGS = {"doc_stride": 4, "max_answer_length": 5, "null_threshold": 0.0}
FAMILIES = {
    "NeoBERT": (NeoBERTForQuestionAnswering, lambda **more: NeoBERTConfig(**SIZES, **NEOBERT, **more)),
    "Bert": (transformers.BertForQuestionAnswering, transformers.BertConfig),
    "ModernBert": (transformers.ModernBertForQuestionAnswering, transformers.ModernBertConfig),
    "DebertaV2": (transformers.DebertaV2ForQuestionAnswering, transformers.DebertaV2Config),
    "Roberta": (transformers.RobertaForQuestionAnswering, transformers.RobertaConfig),
}


def model_of(family, **settings):
    model, config = FAMILIES[family]
    sizes = SIZES | {"max_position_embeddings": 33 if family == "Roberta" else 32, "initializer_range": 0.3}
    ids = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    values = settings if family == "NeoBERT" else sizes | ids | settings
    made = model(config(num_labels=2, question_answering=SETTINGS, **values))
    head = made.classifier if family == "ModernBert" else made.qa_outputs
    torch.nn.init.normal_(head.weight)
    return made.eval()


@torch.no_grad()
def reference(folder, question, context):
    """The best span of all windows, or no answer, by the model's own code."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForQuestionAnswering.from_pretrained(folder, trust_remote_code=True).eval()
    rows = tokenizer(
        question, context, truncation="only_second", max_length=32, stride=SETTINGS["doc_stride"],
        return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    found, nothing = [], []
    for number in range(len(rows.input_ids)):
        inputs = {
            name: torch.tensor([rows[name][number]]) for name in tokenizer.model_input_names if name in rows
        }
        outputs = model(**inputs)
        starts, ends = outputs.start_logits[0].double(), outputs.end_logits[0].double()
        places = [at for at, text in enumerate(rows.sequence_ids(number)) if text == 1]
        share = starts.softmax(0)[:, None] * ends.softmax(0)
        nothing.append((float(starts[0] + ends[0]), float(share[0, 0])))
        found += [
            (float(starts[a] + ends[b]), float(share[a, b]), rows.offset_mapping[number][a][0],
             rows.offset_mapping[number][b][1])
            for a in places for b in places if a <= b < a + SETTINGS["max_answer_length"]
        ]  # fmt: skip
    score, share, start, stop = max(found)
    null, null_share = min(nothing)
    if null > score:
        return {"answer": "", "score": null_share, "start": None, "end": None}
    return {"answer": context[start:stop], "score": share, "start": start, "end": stop}


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_the_model_of_transformers(family, saved, tmp_path):
    is_typed = family in ("Bert", "DebertaV2")
    folder = saved(model_of(family, **({"type_vocab_size": 2} if is_typed else {})))
    folder = with_types(folder) if is_typed else folder
    draw = random.Random(2)
    rows = [
        # Neighbours that are equal have nearly equal logits, and ties.
        {
            "question": " ".join(draw.choices(WORDS, k=4)),
            "context": " ".join(word for word, _ in groupby(words)),
        }
        for words in map(str.split, sentences(12, longest=60))
    ]
    found = predict(folder, rows, tmp_path)
    wanted = [reference(folder, row["question"], row["context"]) for row in rows]
    for row, each in zip(found, wanted, strict=True):
        assert {name: row[name] for name in ("answer", "start", "end")} == {
            name: each[name] for name in ("answer", "start", "end")
        }
        assert row["score"] == pytest.approx(each["score"], rel=1e-4, abs=1e-6)
    assert len({row["answer"] for row in found}) > 3


def test_a_row_without_text_has_no_answer_and_columns_are_not_replaced(saved, tmp_path):
    folder = saved(model_of("Bert"))
    rows = [{"question": "", "context": ""}, {"question": "a", "context": ""}]
    for row in predict(folder, rows, tmp_path):
        assert (row["answer"], row["start"], row["end"]) == ("", None, None)
    requested = [{"query": "a", "passage": "the model"}]
    (row,) = predict(folder, requested, tmp_path, "named.jsonl", column="query", pair_column="passage")
    assert row["answer"] in "the model"
    (row,) = predict(folder, [{"question": "a", "context": "b", "answer": "c"}], tmp_path, "other.jsonl")
    assert (row["answer"], row["predicted_answer"] in "b") == ("c", True)


def test_choices_in_one_text_are_refused(saved, tmp_path):
    folder = saved(NeoBERTForMultipleChoice(NeoBERTConfig(**SIZES, **NEOBERT)))
    with pytest.raises(ProjectError, match="the choices are text, expected a list"):
        predict(folder, [{"question": "a", "choices": "b c"}], tmp_path)


def test_settings_of_answers_that_no_run_has_written_are_refused(saved, tmp_path):
    folder = saved(model_of("Bert"))
    settings = json.loads((folder / "config.json").read_text())
    for wrong in ({"doc_stride": -1}, {"max_answer_length": "30"}, {"other": 1}, [3]):
        (folder / "config.json").write_text(json.dumps(settings | {"question_answering": wrong}))
        with pytest.raises(ProjectError, match=r"config\.json: question_answering") as refusal:
            predict(folder, [{"question": "a", "context": "b"}], tmp_path)
        assert refusal.value.hint == "correct question_answering in config.json, or remove question_answering"


@torch.no_grad()
@pytest.mark.parametrize("family", ["NeoBERT", "Bert", "Roberta"])
def test_choices_are_those_of_the_model_of_transformers(family, saved, tmp_path):
    _, config = FAMILIES[family]
    sizes = SIZES | {"max_position_embeddings": 33 if family == "Roberta" else 32, "initializer_range": 0.3}
    made = (
        NeoBERTForMultipleChoice(config(classifier_init_range=1.0))
        if family == "NeoBERT"
        else getattr(transformers, f"{family}ForMultipleChoice")(config(**sizes, type_vocab_size=2))
    )
    folder = saved(made)
    folder = with_types(folder) if family == "Bert" else folder
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMultipleChoice.from_pretrained(folder, trust_remote_code=True).eval()
    draw, texts = random.Random(3), iter(sentences(60, longest=20))
    rows = [
        {"question": next(texts), "choices": [next(texts) for _ in range(draw.randint(2, 4))]}
        for _ in range(9)
    ]
    labelled = [row | {"label": None if place % 2 else 0} for place, row in enumerate(rows)]
    for row, found in zip(rows, predict(folder, labelled, tmp_path), strict=True):
        pairs = [[row["question"]] * len(row["choices"]), row["choices"]]
        inputs = tokenizer(*pairs, padding=True, truncation=True, max_length=32, return_tensors="pt")
        logits = model(**{name: each[None] for name, each in inputs.items()}).logits[0]
        shares = logits.double().softmax(0)
        assert found["prediction"] == int(shares.argmax())
        assert found["probability"] == pytest.approx(float(shares.max()), rel=1e-5)
        assert found["probabilities"] == pytest.approx(shares.tolist(), rel=1e-5, abs=1e-6)
