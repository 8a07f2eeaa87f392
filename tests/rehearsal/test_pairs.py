"""A task of pairs without a head is trained, resumed and tested by example, and planted faults are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neobert.errors import ProjectError
from neobert.tasks.specs import SPECS
from neobert.tasks.table import TASKS
from tests.rehearsal.toy_pairs import task as toy

ROWS = [{"pack_sequences": True}, {"pack_sequences": False}]


@pytest.fixture
def pairs(rehearsal, monkeypatch):
    """Rehearse pairs, with or without a head that their loss does not use."""

    def rehearse(auto_class="AutoModel", **sections):
        spec = replace(
            SPECS["pretrain"],
            keys=replace(TASKS["pretrain"], package="tests.rehearsal.toy_pairs"),
            auto_class=auto_class,
            predicts="pairs",
            texts=lambda _config: 2,
        )
        monkeypatch.setitem(SPECS, "pretrain", spec)
        return rehearsal(model={"kernel_backend": "torch"}, guard={"loss_spike_factor": None}, **sections)

    return rehearse


@pytest.mark.parametrize("rows", ROWS, ids=["packed", "padded"])
def test_a_sound_task_of_pairs_passes(pairs, rows):
    found = pairs(datacollator=rows)
    assert found.failed == set()
    assert {answer.kind for answer in found.facts.answers} == {
        "isolation", "bidirectional", "equality", "positions", "different", "same",
    }  # fmt: skip
    assert found.facts.worst_case.num_segments % 2 == 0


def test_padding_among_the_candidates_is_named(pairs, monkeypatch):
    monkeypatch.setattr(toy, "are_candidates", lambda groups: groups.diff(prepend=groups[:1] - 1) == 0)
    assert "isolation of the loss: changing padding" in pairs().message("TSK006")


def test_a_head_that_does_not_train_is_refused(pairs):
    with pytest.raises(ProjectError, match="4 weights of the model got no gradient in step 1") as refused:
        pairs("AutoModelForSequenceClassification")
    assert refused.value.code == "TRN003"
