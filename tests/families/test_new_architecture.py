"""A new transformers architecture: the schema names it, and a head that it does not state is refused."""

import json
from dataclasses import replace
from typing import get_args

import pytest

from neobert.config import ConfigError, from_dict
from neobert.config.schema.model import Architecture, HfModelConfig
from neobert.errors import ProjectError
from neobert.families.hf import spec
from neobert.families.hf.architecture import TEXTS
from neobert.families.hf.architectures import bert
from neobert.families.hf.architectures.table import ARCHITECTURES, REFUSED

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
    assert [each.key for each in spec.unsupported_keys(CONFIG)] == []
    heads = {name: head for name, head in row.heads.items() if name != TEXTS}
    monkeypatch.setattr(bert, "BERT", row._replace(heads=heads))
    assert [*spec.unsupported_keys(CONFIG)] == [
        (
            "task",
            "transformers has no head of this architecture for task classification",
            "set task to pretrain or token_classification or question_answering or multiple_choice",
        )
    ]


def test_an_architecture_must_be_that_of_the_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
    found = {
        name: [
            (each.key, each.problem, each.hint)
            for each in spec.unsupported_keys(
                replace(CONFIG, model=HfModelConfig(architecture=name, pretrained_checkpoint=str(tmp_path)))
            )
        ]
        for name in ("bert", "electra")
    }
    problem = "architecture is electra, but model.pretrained_checkpoint is a bert"
    expected = [("model.architecture", problem, "set model.architecture to null")]
    assert found == {"bert": [], "electra": expected}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_attention_without_dropout_leaves_the_kernel_of_packed_rows_to_auto(name):
    section = HfModelConfig(architecture=name, attention_dropout=0.0)
    assert spec.requested_kernels(section) == ("torch", "auto")
    with_dropout = "sdpa" if ARCHITECTURES[name].packs else "auto"  # of no packed rows
    assert spec.requested_kernels(replace(section, attention_dropout=0.1)) == ("torch", with_dropout)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_dropout_of_the_outputs_is_that_of_the_architecture_or_refused(name):
    has_it = ARCHITECTURES[name].dropout is not None
    section = HfModelConfig(architecture=name, attention_dropout=0.0, dropout=0.3)
    assert spec.dropout(section) == (0.3 if has_it else 0.0)
    assert spec.dropout(replace(section, dropout=0.0)) == 0.0
    assert spec.dropout_key(section) == ("model.dropout" if has_it else "model.attention_dropout")
    refused = {each.key for each in spec.unsupported_keys(replace(CONFIG, model=section))}
    assert ("model.dropout" in refused) == (not has_it)


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


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_leaks_in_packed_rows_is_refused_with_the_reason(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}), encoding="utf-8")
    with pytest.raises(ProjectError) as caught:
        spec.read_model_settings(HfModelConfig(config=str(tmp_path)))
    assert caught.value.code == "MOD006"
    assert caught.value.message == f"architecture {name} is not supported: {REFUSED[name]}"
    assert caught.value.hint == "set model.config to a model of another type"


@pytest.mark.parametrize("name", ["neobert", "nsa"])
def test_a_family_of_its_own_has_its_type_in_the_hint(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}), encoding="utf-8")
    with pytest.raises(ProjectError) as caught:
        spec.read_model_settings(HfModelConfig(pretrained_checkpoint=str(tmp_path)))
    assert caught.value.hint == f"set model.type to {name}"


@pytest.mark.parametrize(
    ("values", "length", "limit"),
    [
        ({"model_type": "phi3", "rope_scaling": {"type": "longrope"}}, 4096, None),
        ({"model_type": "phi3", "rope_scaling": {"type": "longrope"}}, 4097, 4096),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "dynamic", "factor": 2}}, 4097, 4096),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "linear", "factor": 2}}, 4097, None),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_type": "dynamic"}}},
            4097,
            4096,
        ),
    ],
)
def test_positions_that_depend_on_the_longest_document_are_refused(values, length, limit, tmp_path):
    values |= {"max_position_embeddings": 131_072, "original_max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    run = {"task": "causal", "model": {"type": "hf", "config": str(tmp_path)}}
    run |= {"dataset": {"max_seq_length": length}}
    found = [(each.key, each.hint) for each in spec.unsupported_keys(from_dict(run))]
    key = "dataset.max_seq_length"
    assert found == ([] if limit is None else [(key, f"set {key} to {limit}")])
