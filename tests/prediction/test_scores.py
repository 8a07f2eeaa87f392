"""Scores that `predict` reports where the rows have the labels of their run."""

import json
import random

import pytest
import torch

from neobert.model import NeoBERTConfig
from neobert.model.modeling_neobert import NeoBERTForMultipleChoice
from neobert.prediction.job import run
from neobert.prediction.request import Request
from tests.export.conftest import _one_thread_one_seed, tokenizer_dir
from tests.prediction.test_answers import model_of
from tests.prediction.test_predict import (
    FAMILIES,
    NEOBERT,
    SCORE,
    SIZES,
    WORDS,
    checkpoint_of_a_run,
    predict,
    saved,
    sentences,
)

__all__ = ["_one_thread_one_seed", "saved", "tokenizer_dir"]

TAGS = ("O", "B-PER", "I-PER")
TAGGED = {"id2label": dict(enumerate(TAGS)), "label2id": {name: at for at, name in enumerate(TAGS)}}


@pytest.fixture
def scores_of(tmp_path):
    def score(folder, rows):
        source = tmp_path / "labelled.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        report = run(Request(str(folder), str(source), str(tmp_path / "scored.jsonl")))
        return source, report

    return score


def test_labelled_words_are_scored_by_label_and_entity(saved, tmp_path, scores_of):
    """Rows have the labels that the model predicts, but for one row that has none of its entities."""
    section = {"label_names": TAGS}
    config = {"task": "token_classification", "token_classification": section}
    folder = checkpoint_of_a_run(tmp_path / "run", saved(FAMILIES["NeoBERT"]("Token", TAGGED)), config)
    texts = [{"words": text.split()} for text in sentences(12, longest=20)]
    labelled = [row | {"tags": row.pop("prediction")} for row in predict(folder, texts, tmp_path)]
    changed = next(row for row in labelled if {*row["tags"]} - {"O"})
    words = sum(len(row["tags"]) for row in labelled)
    wrong = sum(tag != "O" for tag in changed["tags"])
    changed["tags"] = ["O"] * len(changed["tags"])
    source, report = scores_of(folder, [*labelled, {"words": ["a", "b"], "tags": ["O"]}])
    assert (report["labelled"], report["accuracy"]) == (words, round(1 - wrong / words, 4))
    assert report["recall"] == 1 > report["precision"] > 0
    assert sum(each["words"] for each in report["classes"].values()) == words
    assert sum(report["classes"]["O"]["predicted_as"].get(name, 0) for name in TAGS[1:]) == wrong
    problem = f"{source}:13: the row has 2 words, but 1 label"
    assert report["unread_labels"] == {"rows": 1, "first": problem}


def test_answers_are_scored_as_in_squad(saved, tmp_path, scores_of):
    config = {"task": "question_answering", "question_answering": {"null_threshold": 0}}
    folder = checkpoint_of_a_run(tmp_path / "run", saved(model_of("Bert")), config)
    draw = random.Random(4)
    rows = [
        {"question": "the", "context": " ".join(draw.sample(WORDS[3:], k=4)) + f" {number}"}
        for number in range(8)
    ]
    found = predict(folder, rows, tmp_path)
    answered = [
        row | {"answers": {"text": [each["answer"]] if each["answer"] else [], "answer_start": []}}
        for row, each in zip(rows, found, strict=True)
    ]
    report = scores_of(folder, answered)[1]
    assert (report["labelled"], report["exact_match"], report["f1"]) == (8, 1.0, 1.0)
    answered[0]["answers"] = ["none of the words of the context , 9"]
    report = scores_of(folder, [*answered, rows[0] | {"answers": 3}])[1]
    assert (report["labelled"], report["exact_match"]) == (8, 7 / 8)
    assert report["unread_labels"]["rows"] == 1


def test_choices_are_scored_by_index_or_name(saved, tmp_path, scores_of):
    model = NeoBERTForMultipleChoice(NeoBERTConfig(**SIZES, **NEOBERT, classifier_init_range=1.0))
    config = {"task": "multiple_choice", "multiple_choice": {"label_column": "answerKey"}}
    folder = checkpoint_of_a_run(tmp_path / "run", saved(model), config)
    texts = iter(sentences(40, longest=9))
    rows = [
        {"question": next(texts), "choices": {"text": [next(texts) for _ in "ABC"], "label": [*"ABC"]}}
        for _ in range(8)
    ]
    named = [
        row | {"answerKey": "ABC"[each["prediction"]]}
        for row, each in zip(rows, predict(folder, rows, tmp_path), strict=True)
    ]
    named[0]["answerKey"] = next(name for name in "ABC" if name != named[0]["answerKey"])
    source, report = scores_of(folder, [*named, rows[0] | {"answerKey": "D"}])
    assert (report["labelled"], report["accuracy"]) == (8, 7 / 8)
    assert report["unread_labels"]["first"] == f"{source}:9: label 'D' names none of the 3 choices"


def test_scores_are_correlated(saved, tmp_path, scores_of):
    config = {"task": "classification", "classification": {"problem": "regression", "label_column": "grade"}}
    folder = checkpoint_of_a_run(tmp_path / "run", saved(FAMILIES["NeoBERT"]("Sequence", SCORE)), config)
    texts = [{"text": text} for text in sentences(12)]
    found = torch.tensor([row["prediction"] for row in predict(folder, texts, tmp_path)], dtype=torch.float64)
    grades = (found**3).tolist()  # in the order of the predictions
    rows = [row | {"grade": grade} for row, grade in zip(texts, grades, strict=True)]
    report = scores_of(folder, [*rows, {"text": "a", "grade": None}, {"text": " ", "grade": 9}])[1]
    wanted = float(torch.corrcoef(torch.stack([found, found**3]))[0, 1])
    assert (report["labelled"], report["spearman"]) == (12, 1.0)
    assert report["pearson"] == pytest.approx(wanted, abs=1e-4)
    assert report["rmse"] == pytest.approx(float((found - found**3).square().mean().sqrt()), rel=1e-3)
    assert wanted < 0.9999
