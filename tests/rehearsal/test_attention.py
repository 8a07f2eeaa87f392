"""Attention of a task is tested by its rehearsal: planted faults are seen by name, whatever the task is."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from neobert.data.batches.targets import IGNORED
from neobert.objectives import TokenObjective
from neobert.tasks.causal import examples as causal_examples
from neobert.tasks.next_tokens import NextTokens
from neobert.tasks.token_task import TokenData
from tests.merged_documents import look_back_only, two_merged

PADDED = {"datacollator": {"pack_sequences": False}}
LEARNED = {"model": {"rope": False}}


@pytest.mark.parametrize("sections", [PADDED, LEARNED], ids=["padded rows", "learned positions"])
def test_a_sound_model_passes(rehearsal, sections):
    found = rehearsal(**sections)
    assert found.failed == set()
    assert {answer.kind for answer in found.facts.answers} == {
        "isolation", "bidirectional", "equality", "positions", "different", "same",
    }  # fmt: skip


def positions_that_run_on(monkeypatch):
    inputs = TokenData.inputs

    def running_on(self, batch, device):
        given = inputs(self, batch, device)
        return given | {"position_ids": torch.arange(given["input_ids"].numel()) % 32}

    monkeypatch.setattr(TokenData, "inputs", running_on)


def another_scale(monkeypatch):
    attend = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v, **_: attend(q, k, v, scale=0.2))


@pytest.mark.parametrize(
    ("fault", "sections", "messages"),
    [
        (two_merged, {}, ["isolation: ", "equality: ", "isolation of the loss: "]),
        (positions_that_run_on, {}, ["positions: "]),
        (positions_that_run_on, LEARNED, ["positions: ", "equality: "]),
        (look_back_only, {}, ["direction: ", "equality: "]),
        (another_scale, {}, ["equality: "]),
    ],
)
def test_a_fault_of_an_encoder_is_named(first_session, monkeypatch, fault, sections, messages):
    fault(monkeypatch)
    found = first_session(**sections)
    assert "TSK006" in found.failed
    for message in messages:
        assert message in found.message("TSK006")


LLAMA = {"type": "hf", "architecture": "llama", "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture
def causal(first_session):
    """Rehearse pretraining of a causal model."""
    return lambda **sections: first_session(task="causal", model=LLAMA, **sections)


def test_a_sound_causal_task_passes(rehearsal):
    found = rehearsal(task="causal", model=LLAMA)
    assert found.failed == set()
    assert {answer.kind for answer in found.facts.answers} == {
        "isolation", "causal", "equality", "positions", "different", "same", "shift", "next",
    }  # fmt: skip


def by_sdpa(change):
    """Return a plant of a fault in the arguments of SDPA."""

    def plant(monkeypatch):
        attend = F.scaled_dot_product_attention

        def changed(q, k, v, attn_mask=None, **rest):
            return attend(**change(q, k, v, attn_mask, rest))

        monkeypatch.setattr(F, "scaled_dot_product_attention", changed)

    return plant


def in_both_directions(q, k, v, mask, rest):
    return {"query": q, "key": k, "value": v, "attn_mask": mask | mask.transpose(-1, -2), **rest}


def key_heads_in_another_order(q, k, v, mask, rest):
    k, v = (x.repeat(1, q.shape[1] // k.shape[1], 1, 1) for x in (k, v))
    return {"query": q, "key": k, "value": v, "attn_mask": mask, **rest, "enable_gqa": False}


@pytest.mark.parametrize(
    ("fault", "messages"),
    [
        (two_merged, ["isolation: ", "equality: "]),
        (positions_that_run_on, ["positions: "]),
        (
            by_sdpa(in_both_directions),
            ["direction: changing later tokens", "equality: ", "the later tokens of a text"],
        ),
        (by_sdpa(key_heads_in_another_order), ["equality: "]),
    ],
)
def test_a_fault_of_a_causal_model_is_named(causal, monkeypatch, fault, messages):
    fault(monkeypatch)
    found = causal()
    assert found.checks["TSK006"].status == "fail"
    for message in messages:
        assert message in found.message("TSK006")


def no_shift(ids, _labels):
    return ids.copy()


def shift_twice(_ids, labels):
    return np.append(labels[1:], IGNORED)


def labels_of_another_document(_ids, labels):
    return np.roll(labels, len(labels) // 2)


@pytest.fixture
def labelled_by(monkeypatch):
    """Replace the labels of next tokens."""
    targets = NextTokens.targets

    def plant(fault):
        def faulty(self, segments, **of_run):
            found = targets(self, segments, **of_run)
            return replace(found, labels=fault(found.input_ids, found.labels))

        monkeypatch.setattr(NextTokens, "targets", faulty)

    return plant


@pytest.mark.parametrize("fault", [no_shift, shift_twice, labels_of_another_document])
def test_labels_of_the_rule_that_are_not_the_next_tokens(causal, labelled_by, fault):
    labelled_by(fault)
    assert causal().message("TSK006").startswith("shift: the targets in a text have the next token")


def test_a_label_from_the_next_document(causal, labelled_by, monkeypatch, tmp_path):
    """Documents that all begin alike, as with a beginning of text, have equal labels at their ends anyway."""
    frame = causal_examples.framing_with_end
    monkeypatch.setattr(causal_examples, "framing_with_end", lambda each: replace(frame(each), start=()))
    labelled_by(lambda ids, _labels: np.roll(ids, -1))
    message = causal(dataset={"cache_dir": str(tmp_path / "cache")}).message("TSK006")
    assert message.startswith("shift: the targets at the end of a text")


def test_targets_that_were_not_tested_are_unknown(causal, monkeypatch):
    monkeypatch.setattr("neobert.rehearsal.answers.target_answers", lambda _batch: ())
    check = causal().checks["TSK006"]
    assert (check.status, check.message) == ("unknown", "not tested: next")


def test_a_shift_that_is_done_twice(causal, monkeypatch):
    decoded = TokenObjective._decoded_loss

    def shifted_again(self, hidden, labels, num_rows):
        return decoded(self, hidden[:-1], labels[1:], min(num_rows, len(labels) - 1))

    monkeypatch.setattr(TokenObjective, "_decoded_loss", shifted_again)
    message = causal().message("TSK006")
    assert "shift: changing the token at the position of a target" in message
    assert "equality" not in message
