"""A new transformers architecture: the schema names it, and a head that it does not state is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from neobert.config import ConfigError, from_dict
from neobert.config.schema.model import Architecture, HfModelConfig
from neobert.families.hf import spec
from neobert.families.hf.architecture import TEXTS
from neobert.families.hf.architectures import bert
from neobert.families.hf.architectures.table import ARCHITECTURES

CONFIG = from_dict(
    {
        "task": "classification",
        "model": {"type": "hf", "architecture": "bert"},
        "classification": {"pooling": "cls"},
    }
)


def test_the_schema_has_the_names_of_the_table():
    assert get_args(Architecture) == (*ARCHITECTURES,)


def test_an_architecture_without_a_classifier_is_refused_by_name(monkeypatch):
    row = ARCHITECTURES["bert"]
    assert [each.key for each in spec.unsupported(CONFIG)] == []
    heads = {name: head for name, head in row.heads.items() if name != TEXTS}
    monkeypatch.setattr(bert, "BERT", row._replace(heads=heads))
    assert [*spec.unsupported(CONFIG)] == [
        (
            "task",
            "transformers has no head of this architecture for task classification",
            "set task to pretrain or token_classification",
        )
    ]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_attention_without_dropout_leaves_the_kernel_of_packed_rows_to_auto(name):
    section = HfModelConfig(architecture=name, attention_dropout=0.0)
    assert spec.requested_kernels(section) == ("torch", "auto")
    with_dropout = "sdpa" if ARCHITECTURES[name].packs else "auto"  # of no packed rows
    assert spec.requested_kernels(replace(section, attention_dropout=0.1)) == ("torch", with_dropout)


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("albert", f"write {' or '.join(ARCHITECTURES)}"),
        ("deberta", "did you mean deberta-v2?"),
        ("xlm_roberta", "did you mean xlm-roberta?"),
    ],
)
def test_another_architecture_is_not_taken_for_a_misspelling(written, hint):
    with pytest.raises(ConfigError, match="expects one of bert, modernbert, roberta, ") as caught:
        from_dict({"model": {"type": "hf", "architecture": written}})
    assert [issue.hint for issue in caught.value.issues] == [hint]
