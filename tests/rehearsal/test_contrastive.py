"""Pairs are rehearsed: a sound run passes, and a faulty second pass of a step with dropout is named."""

import json
from dataclasses import replace

import pytest

from neobert.tasks.contrastive import step
from neobert.tasks.contrastive.step import RepeatedForward
from neobert.tasks.contrastive.texts import Texts
from neobert.tasks.specs import SPECS
from tests.pairs import pairs
from tests.refusals import refusal_of


@pytest.fixture
def rehearse(tmp_path):
    def run(rehearsal, **sections):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in pairs(400, 3)), encoding="utf-8")
        data = {"path": str(path), "eval_samples": 40, "long_documents": "truncate"}
        return rehearsal(**{"task": "contrastive", "dataset": data, **sections})

    return run


@pytest.mark.parametrize(
    ("is_packed", "dropout", "weight"),
    [(True, 0.0, 0.0), (True, 0.1, 0.5), (False, 0.0, 0.0)],
    ids=["packed", "dropout and masks", "padded"],
)
def test_pairs_pass(rehearsal, rehearse, is_packed, dropout, weight):
    rows = dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), 24)
    found = rehearse(
        rehearsal,
        datacollator={"pack_sequences": is_packed},
        trainer={} if is_packed else rows,
        model={"dropout": dropout},
        contrastive={"masked_lm_weight": weight},
    )
    assert found.failed == set(), [found.message(each) for each in found.failed]
    assert found.facts.accumulation.relative_difference < 1e-5
    assert {answer.kind for answer in found.facts.answers} >= {
        "isolation", "bidirectional", "equality", "positions", "different", "same",
    }  # fmt: skip


class WithPadding(Texts):
    """Texts whose documents include the padding."""

    @classmethod
    def from_batch(cls, batch):
        return super().from_batch(
            replace(batch, groups=batch.groups.where(batch.groups >= 0, batch.groups.max()))
        )


def test_padding_among_the_documents_is_named(first_session, rehearse, monkeypatch):
    monkeypatch.setattr(step, "Texts", WithPadding)
    assert "isolation of the loss: changing padding" in rehearse(first_session).message("TSK006")


def test_a_head_that_does_not_train_is_refused(first_session, rehearse, monkeypatch):
    spec = replace(SPECS["contrastive"], auto_class="AutoModelForSequenceClassification")
    monkeypatch.setitem(SPECS, "contrastive", spec)
    refusal_of(rehearse, "TRN003", "4 weights of the model got no gradient in step 1", first_session)


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
        monkeypatch.setattr(RepeatedForward, "run_with_graph", RepeatedForward.forward)
    padded = {"model": BERT, "datacollator": {"pack_sequences": False}}
    found = rehearse(first_session, **padded, trainer={"per_device_train_batch_size": 24})
    assert ("SCH003" in found.failed) == is_faulty
    if is_faulty:
        assert "from the gradient of one graph over both" in found.message("SCH003")
