"""Limits of the rules about initial weights, and what silences them."""

from dataclasses import replace
from typing import Any

import pytest

from tests.validators.judging import FACTS, found, run_of, with_facts
from validators.facts import Facts
from validators.finding import Severity

PLACE = "runs/first/checkpoints/latest"
TEXT = (f"model.pretrained_checkpoint={PLACE}",)
LABELLED = (*TEXT, "task=classification", "dataset.long_documents=truncate")
SPECIAL = {"special_tokens": {"mask": (103, 4)}}
FAULTS = [
    ("DAT029", TEXT, SPECIAL),
    ("MOD007", TEXT, {"weights_positions": 512}),
    ("TSK011", LABELLED, {"random_head": ("classifier",)}),
]


def of_weights(**changes: Any) -> Facts:
    return with_facts("data", weights=PLACE, **changes)


def test_padding_alone_is_a_warning():
    only = of_weights(special_tokens={"pad": (0, 1)})
    both = of_weights(special_tokens={"mask": (103, 4), "pad": (0, 1)})
    assert [one.severity for one in found("DAT029", run_of(*TEXT), only)] == [Severity.WARN]
    (violation,) = found("DAT029", run_of(*TEXT), both)
    assert violation.severity is None
    assert "mask 103, not 4, pad 0, not 1" in violation.message


@pytest.mark.parametrize(
    ("tokenizer", "hint"),
    [
        (
            PLACE,
            f"put the tokenizer of the weights into {PLACE}, or correct mask_token_id in its config.json",
        ),
        ("bert-base-uncased", f"set tokenizer.path to {PLACE}"),
    ],
)
@pytest.mark.parametrize("place", [PLACE, f"{PLACE}/model.safetensors"])
def test_the_tokenizer_of_the_weights_is_the_way_out(tokenizer, hint, place):
    facts = with_facts("data", weights=place, tokenizer=tokenizer, **SPECIAL)
    (violation,) = found("DAT029", run_of(*TEXT), facts)
    assert violation.hint.startswith(hint)


@pytest.mark.parametrize(("code", "overrides", "fault"), FAULTS)
def test_a_run_that_resumes_does_not_read_the_weights(code, overrides, fault):
    run, facts = run_of(*overrides), of_weights(**fault)
    assert len(found(code, run, facts)) == 1
    resumed = replace(FACTS.resume, exists=True, is_verified=True)
    assert found(code, run, replace(facts, resume=resumed)) == []
    damaged = replace(FACTS.resume, exists=True, is_verified=False)
    assert len(found(code, run, replace(facts, resume=damaged))) == 1


def test_rows_that_the_model_has_no_positions_for_are_reported_once():
    long = run_of(*TEXT, "dataset.max_seq_length=2048", "model.max_position_embeddings=1024")
    assert len(found("MOD002", long)) == 1
    assert found("MOD007", long, of_weights(weights_positions=1024)) == []


@pytest.mark.parametrize(("base", "is_found"), [(10_000, True), (41_000, True), (42_000, False)])
def test_a_base_that_was_raised_for_the_rows_is_meant(base, is_found):
    run = run_of(*TEXT, "dataset.max_seq_length=2048", f"model.rope_theta={base}")
    reported = found("MOD007", run, of_weights(weights_positions=512, weights_rope_theta=42_000.0))
    assert bool(reported) == is_found
    assert all("or model.rope_theta to 42000 to train on longer rows" in each.hint for each in reported)
