"""Answers and choices are rehearsed: sound runs pass; faults are planted in tests/tasks/test_probes.py."""

import json

import pytest

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
