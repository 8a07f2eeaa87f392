"""Attention of a task is tested by its rehearsal: planted faults are seen by name, whatever the task is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from neobert.data.batches.targets import IGNORED
from neobert.families.neobert.spec import NEOBERT, read_shape
from neobert.families.table import FAMILIES
from neobert.objectives import TokenObjective
from neobert.tasks.next_tokens import NextTokens
from neobert.tasks.token_task import TokenData
from tests.merged_documents import two_merged
from tests.rehearsal import toy_decoder

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


def look_back_only(monkeypatch):
    attend = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda q, k, v, **_: attend(q, k, v, is_causal=True)
    )


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
def test_a_fault_of_an_encoder_is_named(rehearsal, monkeypatch, fault, sections, messages):
    fault(monkeypatch)
    found = rehearsal(**sections)
    assert "TSK006" in found.failed
    for message in messages:
        assert message in found.message("TSK006")


@pytest.fixture
def causal(rehearsal, monkeypatch):
    """Rehearse a causal task over a causal model."""
    family = NEOBERT._replace(
        module="tests.rehearsal.toy_decoder",
        read_shape=lambda section, *sizes: replace(
            read_shape(section, *sizes), attention=toy_decoder.spec_of(section)
        ),
    )
    monkeypatch.setitem(FAMILIES, "neobert", family)
    return lambda: rehearsal(task="causal", model={"kernel_backend": "torch", "num_attention_heads": 4})


def test_a_sound_causal_task_passes(causal):
    found = causal()
    assert found.failed == {"CFG004"}  # it does not read the kernels of blocks
    assert {answer.kind for answer in found.facts.answers} == {
        "isolation", "causal", "equality", "positions", "different", "same", "shift", "next",
    }  # fmt: skip


def test_a_causal_task_whose_documents_are_merged_fails_by_name(causal, monkeypatch):
    """Without position ids, transformers takes the row as one document."""
    monkeypatch.setattr(toy_decoder, "positions_received", lambda positions: torch.arange(len(positions)))
    found = causal()
    assert found.checks["TSK006"].status == "fail"
    for message in ("isolation: ", "equality: ", "positions: ", "isolation of the loss: "):
        assert message in found.message("TSK006")


def test_later_tokens_that_a_causal_model_sees(causal, monkeypatch):
    attend = F.scaled_dot_product_attention

    def in_both_directions(q, k, v, attn_mask=None, is_causal=False, **rest):
        groups = attn_mask if attn_mask is None else attn_mask | attn_mask.transpose(-1, -2)
        return attend(q, k, v, attn_mask=groups, **rest)

    monkeypatch.setattr(F, "scaled_dot_product_attention", in_both_directions)
    message = causal().message("TSK006")
    for part in ("direction: changing later tokens", "equality: ", "the later tokens of a text"):
        assert part in message


def test_key_heads_in_another_order(causal, monkeypatch):
    from transformers.integrations import sdpa_attention

    monkeypatch.setattr(sdpa_attention, "use_gqa_in_sdpa", lambda *_: False)
    monkeypatch.setattr(sdpa_attention, "repeat_kv", lambda x, times: x.repeat(1, times, 1, 1))
    assert "equality: " in causal().message("TSK006")


def no_shift(ids, _labels):
    return ids.copy()


def shift_twice(_ids, labels):
    return np.append(labels[1:], IGNORED)


def labels_of_another_document(_ids, labels):
    return np.roll(labels, len(labels) // 2)


@pytest.mark.parametrize("fault", [no_shift, shift_twice, labels_of_another_document])
def test_labels_of_the_rule_that_are_not_the_next_tokens(causal, monkeypatch, fault):
    targets = NextTokens.targets

    def faulty(self, segments, **of_run):
        found = targets(self, segments, **of_run)
        return replace(found, labels=fault(found.input_ids, found.labels))

    monkeypatch.setattr(NextTokens, "targets", faulty)
    assert causal().message("TSK006").startswith("shift: the targets in a text have the next token")


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
