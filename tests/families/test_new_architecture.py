"""A new transformers architecture: what it does not state is refused by name, or left to the trainer."""

from __future__ import annotations

from neobert.config import from_dict
from neobert.families.hf import initial_weights, spec

CONFIG = from_dict(
    {
        "task": "classification",
        "model": {"type": "hf", "architecture": "bert"},
        "classification": {"pooling": "cls"},
    }
)


def test_an_architecture_without_a_classifier_is_refused_by_name(monkeypatch):
    row = spec.ARCHITECTURES["bert"]
    assert [each.key for each in spec.unsupported(CONFIG)] == []
    monkeypatch.setitem(spec.ARCHITECTURES, "bert", row._replace(poolings=()))
    assert [(key, problem) for key, problem, _ in spec.unsupported(CONFIG)] == [
        ("task", "this architecture has no classifier of texts")
    ]


def test_weights_of_an_architecture_without_expected_shapes_are_left_to_the_trainer(monkeypatch, tmp_path):
    monkeypatch.delitem(initial_weights.WEIGHTS, "bert")
    initial_weights.refuse_other_weights(CONFIG, tmp_path)
