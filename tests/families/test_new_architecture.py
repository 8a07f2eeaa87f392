"""A new transformers architecture: the schema names it, and a head that it does not state is refused."""

from __future__ import annotations

from typing import get_args

from neobert.config import from_dict
from neobert.config.schema.model import Architecture
from neobert.families.hf import spec
from neobert.families.hf.architecture import TEXTS
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
    monkeypatch.setitem(ARCHITECTURES, "bert", row._replace(heads=heads))
    assert [(key, problem) for key, problem, _ in spec.unsupported(CONFIG)] == [
        ("task", "transformers has no head of this architecture for classification")
    ]
