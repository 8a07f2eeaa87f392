"""The tables of other trainers' names: what they advise exists, and what they refuse does not."""

import re

import pytest

from neobert.config import all_keys, sections
from neobert.config.annotations import annotation_at, literal_choices
from neobert.config.key_suggestions import suggest_key
from neobert.config.keys import describe_field
from neobert.config.migrated_files import with_value
from neobert.config.migrated_keys import advice_for_key, advice_for_value, rename_table

NAMED = re.compile(rf"\b((?:{'|'.join(sections())})\.[a-z_0-9]+)(?::\s+([a-z_0-9]+)$)?", re.MULTILINE)


def test_advice_names_keys_and_values_that_exist():
    advice = "\n".join(
        text for part in ("sections", "keys", "names") for text in rename_table()[part].values()
    )
    for key, value in NAMED.findall(advice):
        assert key in all_keys()
        choices = literal_choices(annotation_at(tuple(key.split("."))))
        assert not value or not choices or value in choices


def test_no_key_of_the_schema_is_refused_as_anothers():
    assert [key for key in all_keys() if advice_for_key(tuple(key.split(".")))] == []
    assert not set(rename_table()["sections"]) & {
        *sections(),
        "profile",
        "task",
        "seed",
        "variables",
        "waivers",
    }


def test_no_advice_is_shadowed_by_a_key_of_every_type():
    infos = (describe_field(tuple(key.split("."))) for key in all_keys() if key in rename_table()["keys"])
    assert [info for info in infos if not info or not info.tags] == []


def test_values_that_are_refused_are_no_choices():
    for entry, advice in rename_table()["values"].items():
        key, _, value = entry.partition(":")
        assert key in all_keys()
        assert value not in literal_choices(annotation_at(tuple(key.split("."))))
        assert advice_for_value(key, value) == advice


def test_nothing_is_refused_without_a_reason():
    answers = [text for part in rename_table().values() for text in part.values() if "not supported" in text]
    assert answers
    assert [advice for advice in answers if not re.search(r"not supported(?: yet)?[:,] .{10}", advice)] == []


@pytest.mark.parametrize(
    ("advice", "value", "hint"),
    [
        ("write trainer.save_steps", 50, "write trainer.save_steps: 50"),
        ("write dataset.long_documents", True, "write dataset.long_documents: truncate"),
        (
            "write dataset.long_documents",
            False,
            "write dataset.long_documents: split or truncate or drop or error",
        ),
        ("write model.attn_backend", "eager", "write model.attn_backend: sdpa"),
        ("write model.hidden_act", "relu", "write model.hidden_act: swiglu or gelu"),
        ("write trainer.output_dir", "no", 'write trainer.output_dir: "no"'),
        ("write trainer.output_dir", "x" * 99, "write trainer.output_dir"),
        ("write trainer.max_steps", "often", "write trainer.max_steps"),
        (
            "write dataset.max_seq_length and model.max_position_embeddings",
            512,
            "write dataset.max_seq_length: 512 and model.max_position_embeddings: 512",
        ),
        ("write scheduler.warmup_percent, in percent", 0.1, "write scheduler.warmup_percent, in percent"),
        ("write trainer.save_steps", {}, "write trainer.save_steps"),
    ],
)
def test_a_hint_names_the_value(advice, value, hint):
    assert with_value(advice, value) == hint


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("model.save_steps", "trainer.save_steps"),
        ("trainer.save_step", "trainer.save_steps"),
        ("save-steps", "trainer.save_steps"),
        ("trainer.Max_Steps", "trainer.max_steps"),
        ("dataset.mlm_probability", "datacollator.mlm_probability"),
        ("trainer.warmup_step", "scheduler.warmup_steps"),
        ("optimiser", "optimizer"),
        ("optimiser.lr", "optimizer.lr"),
        ("modle.hiden_size", "model.hidden_size"),
        ("optimiser.name", "optimizer.name"),
        ("trainer.gradient_clip", "trainer.gradient_clipping"),
        ("trainer.maxsteps", "trainer.max_steps"),
        ("trainer.steps_max", "trainer.max_steps"),
        ("zzzzzz", ""),
    ],
)
def test_the_key_that_was_meant_is_found_in_any_section(typed, meant):
    assert suggest_key(typed) == meant
