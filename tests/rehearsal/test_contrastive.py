"""Pairs are rehearsed: a sound run passes, and a faulty second pass of a step with dropout is named."""

from __future__ import annotations

import json

import pytest

from neobert.tasks.contrastive.step import Pass
from tests.tasks.test_contrastive import pairs


@pytest.fixture
def rehearse(tmp_path):
    def run(rehearsal, **sections):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in pairs(400, 3)), encoding="utf-8")
        data = {"path": str(path), "eval_samples": 40, "long_documents": "truncate"}
        return rehearsal(**{"task": "contrastive", "dataset": data, **sections})

    return run


@pytest.mark.parametrize("is_packed", [True, False], ids=["packed", "padded"])
def test_pairs_pass(rehearsal, rehearse, is_packed):
    rows = dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), 24)
    found = rehearse(rehearsal, datacollator={"pack_sequences": is_packed}, trainer={} if is_packed else rows)
    assert found.failed == set(), [found.message(each) for each in found.failed]
    assert found.facts.accumulation.relative_difference < 1e-5


BERT = {
    "type": "hf",
    "architecture": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


@pytest.mark.parametrize("is_faulty", [False, True], ids=["sound", "faulty"])
def test_other_random_numbers_in_the_second_pass_are_named(first_session, rehearse, monkeypatch, is_faulty):
    if is_faulty:
        monkeypatch.setattr(Pass, "again", Pass.forward)
    padded = {"model": BERT, "datacollator": {"pack_sequences": False}}
    found = rehearse(first_session, **padded, trainer={"per_device_train_batch_size": 24})
    assert ("SCH003" in found.failed) == is_faulty
    if is_faulty:
        assert "from that of one graph over both" in found.message("SCH003")
