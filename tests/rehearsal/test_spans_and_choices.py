"""Answers and choices are rehearsed: sound runs pass, and planted faults are named."""

from __future__ import annotations

import json

import pytest

from neobert.tasks.multiple_choice import objective as choices
from neobert.tasks.question_answering import objective as spans
from tests.tasks.test_multiple_choice import rows
from tests.tasks.test_question_answering import questions


@pytest.fixture
def rehearse(rehearsal, tmp_path):
    def run(task, content, section, **dataset):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in content), encoding="utf-8")
        data = {"path": str(path), "eval_samples": 40, "max_seq_length": 64, **dataset}
        model = {"kernel_backend": "torch", "max_position_embeddings": 64}
        return rehearsal(**{"task": task, task: section, "dataset": data, "model": model})

    return run


def test_answers_pass(rehearse):
    found = rehearse("question_answering", questions(400, 3), {"null_threshold": 0.0})
    assert found.failed == set(), [found.message(each) for each in found.failed]
    assert found.facts.learning.initial_loss > 2.5  # of windows of about 40 tokens


def test_choices_pass(rehearse):
    found = rehearse("multiple_choice", rows(400, 3), {}, long_documents="truncate")
    assert found.failed == set(), [found.message(each) for each in found.failed]
    assert found.facts.learning.vocab_size == 3


def test_rows_that_are_mixed_up_are_named(rehearse, monkeypatch):
    real = choices.by_row
    monkeypatch.setattr(choices, "by_row", lambda logits, *others: real(logits.roll(1), *others))
    found = rehearse("multiple_choice", rows(400, 3), {}, long_documents="truncate")
    assert "isolation of the loss: changing other texts" in found.message("TSK006")


def test_a_softmax_over_the_whole_row_is_named(rehearse, monkeypatch):
    def of_the_run(logits, inputs):
        return logits.expand(len(inputs["cu_seqlens"]) - 1, -1, -1)

    monkeypatch.setattr(spans, "by_window", of_the_run)
    found = rehearse("question_answering", questions(400, 3), {"null_threshold": 0.0})
    assert "isolation of the loss: changing other texts" in found.message("TSK006")
