"""Limits on losses, rates and precision: just at them, and just beyond."""

from dataclasses import replace
from math import log

import pytest

from neobert.tasks.specs import SPECS
from tests.validators.judging import (
    FACTS,
    found,
    run_of,
    with_part,
)
from validators.rule import RULES


@pytest.mark.parametrize(("ratio", "count"), [(1.149, 0), (1.151, 1), (0.851, 0), (0.849, 1)])
def test_a_new_model_knows_nothing(ratio, count):
    first = log(FACTS.rehearsal.learning.vocab_size) * ratio
    facts = with_part("learning", initial_loss=first)
    assert len(found("NUM005", run_of(), facts)) == count
    trained = run_of("model.pretrained_checkpoint=checkpoints/9")
    assert found("NUM005", trained, facts) == []


@pytest.mark.parametrize(("distance", "count"), [(1.0, 0), (1.005, 1), (-0.995, 0), (-1.005, 1)])
def test_a_few_classes_have_a_wider_start(distance, count):
    facts = with_part("learning", vocab_size=2, initial_loss=log(2) + distance)
    run = run_of("task=token_classification", "token_classification.label_names=[O, A]")
    assert len(found("NUM005", run, facts)) == count


def test_labels_that_a_task_derives_from_the_text_have_a_wider_start_too(monkeypatch):
    """A few classes are a few classes, whether the data has them or the target rule computes them."""
    derived = replace(SPECS["token_classification"], labels=None)
    monkeypatch.setitem(SPECS, "token_classification", derived)
    facts = with_part("learning", vocab_size=4, initial_loss=log(4) + 0.3)
    run = run_of("task=token_classification", "token_classification.label_names=[O, A, B, C]")
    assert found("NUM005", run, facts) == []


@pytest.mark.parametrize(("plugin", "count"), [(["plugins.loss=yaml:dump"], 0), ([], 1)])
def test_a_loss_of_ones_own_has_no_uniform_start(plugin, count):
    facts = with_part("learning", vocab_size=2, initial_loss=7.785)
    run = run_of("task=token_classification", "token_classification.label_names=[O, A]", *plugin)
    assert len(found("NUM005", run, facts)) == count


@pytest.mark.parametrize(("classes", "count"), [(1, 0), (2, 1)])
def test_a_score_has_no_uniform_loss(classes, count):
    facts = with_part("learning", vocab_size=classes, initial_loss=9.0)
    assert len(found("NUM005", run_of(), facts)) == count


@pytest.mark.parametrize(("last", "count"), [(97.99, 0), (98.0, 1), (98.01, 1)])
def test_one_batch_is_learned(last, count):
    overfit = replace(FACTS.rehearsal.learning.overfit, first=100.0, last=last)
    assert len(found("NUM005", run_of(), with_part("learning", overfit=overfit))) == count


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        (("optimizer.lr=5e-5",), "set optimizer.lr to 0.004, "),
        (("optimizer.lr=5e-5", "model.hidden_size=192"), "set optimizer.lr to 0.008, "),
        (
            ("optimizer.lr=5e-5", "model.hidden_size=193", "model.num_attention_heads=1"),
            "set optimizer.lr to 0.004, ",
        ),
        (
            ("optimizer.muon_lr=5e-5", "optimizer.muon_adjust_lr_fn=original"),
            "set optimizer.muon_lr to 0.022, ",
        ),
    ],
)
def test_the_hint_has_the_rate_of_the_recipe(overrides, hint):
    (one,) = found("OPT002", run_of("optimizer.name=muon", *overrides))
    assert one.hint.startswith(hint)


def test_a_rate_that_moves_too_little_has_digits_and_limits():
    (one,) = found("OPT002", run_of("optimizer.name=muon", "optimizer.muon_lr=1e-7"))
    share, limits = one.message.partition(" of its size per step ")[::2]
    assert float(share.rpartition(" ")[2].removesuffix("%")) > 0
    assert limits == "(0.25% to 25% is usual)"


@pytest.mark.parametrize(("factor", "count"), [(0.2, 0), (0.201, 1), (0.002, 0), (0.00199, 1)])
def test_a_step_of_original_moves_by_its_width(factor, count):
    """On 10,000 channels, with weights uniform in +-sqrt(3): the share is the rate / 100 * 125 of 25 %."""
    run = run_of(
        "optimizer.name=muon", "optimizer.muon_adjust_lr_fn=original", f"optimizer.lr={factor * 125}"
    )
    config = run.config
    model = replace(config.model, hidden_size=10_000, decoder_init_range=3**0.5)
    run = replace(run, config=replace(config, model=model))
    assert len(found("OPT002", run)) == count


@pytest.mark.parametrize(("rate", "count"), [(0.0249, 0), (0.0251, 1)])
def test_a_step_is_measured_against_the_initial_weights_of_the_run(rate, count):
    """0.2 of the rate is 25 % of 0.02, whatever the range that `model.init: scaled` does not read."""
    run = run_of(
        "optimizer.name=muon", "model.init=scaled", "model.decoder_init_range=1", f"optimizer.lr={rate}"
    )
    assert len(found("OPT002", run)) == count


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        ("a100-prod", ""),
        (None, ""),
        ("cpu-demo", "uses no GPU"),
        ("gpu-smoke", ""),
    ],
)
def test_idle_tensor_cores_are_a_matter_of_production_and_gpus(profile, reason):
    output = RULES["PRE001"].inapplicable(run_of(profile=profile), None)
    assert reason in output
    assert bool(output) is bool(reason)


@pytest.mark.parametrize(("capability", "count"), [((8, 0), 0), ((7, 9), 1), ((7, 5), 1)])
def test_bf16_begins_with_ampere(capability, count):
    facts = replace(FACTS, gpus=(replace(FACTS.gpus[0], compute_capability=capability),))
    assert len(found("PRE002", run_of(), facts)) == count


def test_products_in_no_declared_precision_are_none_of_it():
    (one,) = found("PRE003", run_of(), with_part("precision", product_flops={"float16": 1.0}))
    assert "float16 100%" in one.message
